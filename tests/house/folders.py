"""The ten fullest and the ten emptiest folders of both packages, as a list for developers."""

from __future__ import annotations

from collections import Counter

from tests.house.reading import ROOT, modules

SHOWN = 10


def sizes() -> Counter[str]:
    """Returns how many modules each folder has, without `__init__` and what is in folders below it."""
    paths = [module.path.relative_to(ROOT) for module in modules().values()]
    found = Counter(path.parent.as_posix() for path in paths if path.name != "__init__.py")
    return found + Counter(dict.fromkeys((path.parent.as_posix() for path in paths), 0))


def report() -> str:
    """Returns two lines, for the fullest and the emptiest folders."""
    by_size = sizes().most_common()
    ends = {"fullest folders": by_size[:SHOWN], "emptiest folders": by_size[: -SHOWN - 1 : -1]}
    return "\n".join(
        f"{name}: {', '.join(f'{folder} {size}' for folder, size in folders)}"
        for name, folders in ends.items()
    )


if __name__ == "__main__":
    print(report())
