"""`gatelock demo`: the main job within a minute."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from analyzer.cli.exit_codes import usage_error
from analyzer.cli.options import JsonOption

BROKER = re.compile(r"[^/,\s]+:\d{1,5}")
DATABASES = ("sqlite:///", "postgresql+psycopg://")


def demo(
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A Kafka to use instead of the one it brings.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="A database to use instead of a SQLite file.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show a gate close, within a minute.

    A crowd, a noisy caller, and an analyzer that is killed and comes back.
    """
    if kafka is not None and not BROKER.fullmatch(kafka):
        raise usage_error(f"--kafka {kafka}: write host and port, as in localhost:9092")
    if database is not None and not database.startswith(DATABASES):
        raise usage_error("--database: write sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/NAME")
    from analyzer.demo import main

    raise typer.Exit(main(kafka=kafka, database=database, as_json=json))
