"""Where a gate learns of locks: a server, a database, a file, a fixed list."""

from __future__ import annotations

from math import inf
from pathlib import Path

from gatekeeper.model import LockSource


def open_source(url: str, *, token: str | Path | None = None, longest: float = inf) -> LockSource:
    """The source that `url` names; nothing is connected to before the first fetch.

    `token` is for a server; the others take none. A source that waits for news lets no fetch take
    longer than about `longest` seconds. Raises ValueError for a URL that no source here can read,
    ImportError when what the source needs is not installed.
    """
    scheme = url.partition(":")[0]
    if scheme in ("http", "https"):
        from gatekeeper.sources.http import TIMEOUT_S, WAIT_S, HttpSource

        half_s = longest / 2
        return HttpSource(url, token, wait=min(WAIT_S, half_s), timeout=min(TIMEOUT_S, half_s))
    if token is not None:
        raise ValueError("token: only a server takes one; a database's password goes into its URL")
    if scheme in ("postgresql+psycopg", "sqlite"):
        from gatekeeper.sources.sql import SqlSource

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
    "postgresql+asyncpg": "; a gate reads in a thread of its own: write postgresql+psycopg://",
    "sqlite+aiosqlite": "; a gate reads in a thread of its own: write sqlite:///",
}


def _path_in(url: str) -> str:
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ValueError(
            f"expected a file on this machine, as in file:///var/lib/gatelock/locks.json, got {url!r}"
        )
    return unquote(parts.path)
