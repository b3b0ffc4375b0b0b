"""The main job within a minute: a crowd, a noisy caller, a gate that closes, an analyzer killed and back."""

from __future__ import annotations

import asyncio
import json
import sys

from rich.console import Console


def main(*, kafka: str | None = None, database: str | None = None, as_json: bool = False) -> int:
    """Run the demonstration and print what it showed; 0 if every promise held, 1 if not, 3 if something
    could not be reached or started.

    With `as_json` the steps go to stderr and the last line of stdout is one JSON object.
    """
    from analyzer.demo.live_view import view_for
    from analyzer.demo.processes import ProcessNotStarted
    from analyzer.demo.results import sentences
    from analyzer.demo.scenario import LIMIT, tell

    console = Console(stderr=as_json)
    try:
        with view_for(console) as view:
            found = asyncio.run(tell(view, kafka, database))
    except ProcessNotStarted as error:
        Console(stderr=True).print(str(error), style="red", highlight=False, soft_wrap=True)
        return 3
    if as_json:
        sys.stdout.write(json.dumps(found.as_dict()) + "\n")
    else:
        console.print()
        for sentence in sentences(found, LIMIT):
            console.print(sentence, highlight=False, soft_wrap=True)
    return 0 if found.held else 1
