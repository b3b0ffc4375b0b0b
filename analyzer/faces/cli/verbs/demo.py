"""`gatelock demo`: the main use within a minute."""

from __future__ import annotations

import re
from typing import Annotated

from click.exceptions import Exit

from analyzer.demo import main
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import usage_error
from analyzer.faces.cli.options import JsonOption

BROKER = re.compile(r"[^/,\s]+:\d{1,5}")
DATABASES = ("sqlite:///", "postgresql+psycopg://")


def demo(
    kafka: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="Use this Kafka broker. Default: a built-in mock broker."),
    ] = None,
    database: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Use this database: sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/NAME. "
            "Default: a temporary SQLite file.",
        ),
    ] = None,
    stay: Annotated[
        bool,
        Option("--stay", help="Begin with a past; keep the pages and the callers afterwards, until Ctrl-C."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show a gate close, within a minute.

    Starts many callers and a noisy one, counts their requests, and kills and restarts the analyzer meanwhile.

    Example: gatelock demo --kafka localhost:9092
    """
    if kafka is not None and not BROKER.fullmatch(kafka):
        raise usage_error(f"--kafka {kafka}: write host and port, as in localhost:9092")
    if database is not None and not database.startswith(DATABASES):
        raise usage_error("--database: write sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/NAME")

    raise Exit(main(kafka=kafka, database=database, as_json=json, stays=stay))
