"""`gatelock demo`: the main job within a minute."""

from __future__ import annotations

from typing import Annotated

import typer

from analyzer.cli.given import Json


def demo(
    kafka: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="A Kafka to use instead of the one it brings.")
    ] = None,
    database: Annotated[
        str | None, typer.Option(metavar="URL", help="A database to use instead of a SQLite file.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a gate close, within a minute.

    A crowd, a noisy caller, and an analyzer that is killed and comes back.
    """
    from analyzer.demo import main

    raise typer.Exit(main(kafka=kafka, database=database, as_json=json))
