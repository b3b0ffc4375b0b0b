"""The lock sources of a gate: a Gatelock server, the analyzer's database, a file, a fixed list.

`open_source` makes one from a URL. What a gate does with an update is in `gatekeeper.feed` and
`gatekeeper.view`.
"""

from __future__ import annotations

from math import inf
from pathlib import Path

from gatekeeper.model import LockSource

__all__ = ["open_source"]


def open_source(url: str, *, token: str | Path | None = None, longest: float = inf) -> LockSource:
    """Returns the source that `url` names. It connects when it first fetches.

    Args:
        url: `https://HOST:PORT`, `postgresql+psycopg://USER@HOST/DATABASE`, `sqlite:///PATH` or
            `file:///PATH`.
        token: For a server: the token, or the path of a file that holds it. The other sources take none.
        longest: About how many seconds a fetch from a server may take, its long poll included; by default 10.

    Raises:
        ValueError: No source reads such a URL, or a token is given for a source that takes none.
        ImportError: A package that the source needs is not installed; the message names the extra.

    Example:
        >>> source = open_source("file:///etc/gatelock/locks.json")
        >>> type(source).__name__
        'FileSource'
    """
    scheme = url.partition(":")[0]
    if scheme in ("http", "https"):
        from gatekeeper.sources.http import TIMEOUT_S, WAIT_S, HttpSource

        half_s = longest / 2
        return HttpSource(url, token, wait=min(WAIT_S, half_s), timeout=min(TIMEOUT_S, half_s))
    if token is not None:
        raise ValueError("token: only a server takes one; put a database's password into its URL")
    if scheme in ("postgresql+psycopg", "sqlite"):
        try:
            from gatekeeper.sources.sql import SqlSource
        except ImportError as missing:
            if scheme == "sqlite":
                raise
            # The extra that also has the driver: `sql` alone would lead to the next error.
            raise ImportError(
                "a gate on PostgreSQL needs SQLAlchemy and psycopg 3: pip install 'gatelock[postgres]'"
            ) from missing
        return SqlSource(url)
    if scheme == "file":
        from gatekeeper.sources.file import FileSource

        return FileSource(_path_in(url))
    raise ValueError(
        f"no source reads {scheme!r} URLs: expected https://host:port, "
        "postgresql+psycopg://user@host/database, sqlite:///path or file:///path" + HINTS.get(scheme, "")
    )


HINTS = {
    "postgres": "; for PostgreSQL write postgresql+psycopg://",
    "postgresql": "; for PostgreSQL write postgresql+psycopg://",
    "postgresql+psycopg2": "; for PostgreSQL write postgresql+psycopg://",
    "postgresql+asyncpg": "; a gate polls in a thread and needs no async driver: write postgresql+psycopg://",
    "sqlite+aiosqlite": "; a gate polls in a thread and needs no async driver: write sqlite:///",
}


def _path_in(url: str) -> str:
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError(
            f"expected a file on this machine, as in file:///var/lib/gatelock/locks.json, got {url!r}"
        )
    return unquote(parts.path)
