"""`[database]`: where counts, offsets and locks are stored."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator, SecretStr

from analyzer.config.tables import ConfigTable
from analyzer.kernel.refused_values import quote, raise_fault
from analyzer.kernel.secrets import read_secret_file

SECRET_PARAMETER = re.compile("password|passphrase|token|secret", re.IGNORECASE)
HIDDEN = "hidden-secret"  # needs no encoding in a URL
CHECK_URL = "check [database] url, or name another configuration with --config"  # if it cannot be reached
URL_EXAMPLES = 'write "sqlite:///gatelock.db" or "postgresql+psycopg://USER:PASSWORD@HOST/NAME"'


class Scheme(NamedTuple):
    """A kind of URL; `kernel.database.dialects` has the rest about its database.

    Attributes:
        is_file: Whether the URL has the path of a file.
        also: Schemes that are meant for it, and lack the driver.
    """

    is_file: bool = False
    also: tuple[str, ...] = ()


# Apart from the dialects, so that a configuration is read without SQLAlchemy.
SCHEMES: dict[str, Scheme] = {
    "sqlite": Scheme(is_file=True),
    "postgresql+psycopg": Scheme(also=("postgres", "postgresql")),
}
WITHOUT_DRIVER = {word: name for name, scheme in SCHEMES.items() for word in scheme.also}


def _database_url(value: object) -> object:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if not isinstance(value, str) or "://" not in value:
        raise_fault("must be a database URL", URL_EXAMPLES)
    scheme, _, location = value.partition("://")
    if scheme in WITHOUT_DRIVER:
        raise_fault(f"{scheme}:// does not name the driver", f"write {WITHOUT_DRIVER[scheme]}://")
    if scheme not in SCHEMES:
        raise_fault(f"{quote(scheme)} is not a database that this version supports", URL_EXAMPLES)
    if SCHEMES[scheme].is_file and (not location.strip("/") or ":memory:" in location):
        raise_fault("a database in memory keeps nothing", 'name a file: "sqlite:///gatelock.db"')
    if "@" in (_host(value) or ""):
        raise_fault(
            "the password or user in this URL has an @ that is not encoded", "write %40 for it, and %2F for /"
        )
    host = location.rpartition("@")[2].partition("/")[0]
    if re.search(r":(?!\d*$)[^:\]]*$", host):
        raise_fault(
            "the port in this URL is not a number",
            "write it in digits; in a password write %2F for / and %40 for @",
        )
    return SecretStr(value)


def _host(url: str) -> str | None:
    """Returns the host as the driver would read it; None for a URL that has another fault."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        return make_url(url).host
    except (ArgumentError, ValueError):
        return None


class DatabaseTable(ConfigTable):
    url: Annotated[SecretStr, BeforeValidator(_database_url)] = SecretStr("sqlite:///gatelock.db")
    url_file: (
        Annotated[SecretStr, BeforeValidator(_database_url), BeforeValidator(read_secret_file)] | None
    ) = None

    @property
    def address(self) -> str:
        """The URL with its password: for the engine, never for a message."""
        return (self.url_file or self.url).get_secret_value()

    @property
    def shown(self) -> str:
        """The URL as messages show it, without its password."""
        from sqlalchemy.engine import make_url

        url = make_url(self.address)
        hidden = {name: HIDDEN for name in url.query if SECRET_PARAMETER.search(name)}
        return url.update_query_dict(hidden).render_as_string(hide_password=True).replace(HIDDEN, "***")
