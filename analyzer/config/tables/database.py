"""`[database]`: where counts, offsets and locks are stored."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, SecretStr

from analyzer.config.secrets import from_file, masked
from analyzer.config.tables import ConfigTable
from analyzer.config.values import quoted, refuse


def _database_url(value: object) -> object:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    cure = 'write "sqlite:///gatelock.db" or "postgresql+psycopg://USER:PASSWORD@HOST/NAME"'
    if not isinstance(value, str) or "://" not in value:
        refuse("is no database URL", cure)
    scheme, _, rest = value.partition("://")
    if scheme in ("postgres", "postgresql"):
        refuse(f"{scheme}:// does not say by which driver", "write postgresql+psycopg://")
    if scheme not in ("sqlite", "postgresql+psycopg"):
        refuse(f"{quoted(scheme)} is no database that this version can use", cure)
    if scheme == "sqlite" and (not rest.strip("/") or ":memory:" in rest):
        refuse("a database in memory keeps nothing", 'write "sqlite:///gatelock.db"')
    host = rest.rpartition("@")[2].partition("/")[0]
    if re.search(r":(?!\d*$)[^:\]]*$", host):
        refuse(
            "the port of this URL is no number",
            "characters like / and @ in a password are written %2F and %40",
        )
    return SecretStr(value)


class DatabaseTable(ConfigTable):
    url: Annotated[SecretStr, BeforeValidator(_database_url)] = SecretStr("sqlite:///gatelock.db")
    url_file: Annotated[SecretStr, BeforeValidator(_database_url), BeforeValidator(from_file)] | None = None

    @property
    def address(self) -> str:
        """The URL with its password: for the engine, never for a message."""
        return (self.url_file or self.url).get_secret_value()

    @property
    def shown(self) -> str:
        return masked(self.address)
