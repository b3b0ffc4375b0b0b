"""Java, and jars that Maven fetches once, with the version that a pom.xml names."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.support.servers import Missing

FETCH_S_MAX = 600.0


def find_java() -> str:
    """Returns the path of Java. Raises Missing."""
    java = shutil.which("java")
    if java is None:
        raise Missing("no java in PATH")
    return java


def version_in(pom: Path, artifact: str) -> str:
    """Returns the version of an artifact that `pom` names."""
    found = re.search(
        rf"<artifactId>{re.escape(artifact)}</artifactId>\s*<version>(.+?)</version>", pom.read_text()
    )
    assert found, pom
    return found[1]


def fetch_jars(pom: Path, folder: Path, name: str) -> None:
    """Has Maven copy the jars of `pom` to `folder`, completely or not at all. Raises Missing.

    `name` is what they are, for messages. Does nothing when the folder exists.
    """
    if folder.exists():
        return
    maven = shutil.which("mvn")
    if maven is None:
        raise Missing(f"no mvn in PATH to fetch {name}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        jars = Path(temporary, "jars")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        command = [maven, "-q", "-B", "-f", str(pom), *goal]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=FETCH_S_MAX)
        except subprocess.CalledProcessError as error:
            raise Missing(f"mvn could not fetch {name}: {error.stdout[-300:].strip()}") from error
        except subprocess.TimeoutExpired as error:
            raise Missing(f"mvn took too long to fetch {name}") from error
        if not folder.exists():  # another run may have been faster
            jars.replace(folder)
