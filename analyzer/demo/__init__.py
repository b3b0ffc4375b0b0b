"""`gatelock demo`: the main job within a minute, with real processes.

Forty ordinary callers and a noisy one send requests to a small web application behind gates. The noisy caller
reaches its limit, the analyzer is killed and started again, a lock closes the gates, and in the end every
request has been counted once.
"""

from __future__ import annotations

import asyncio
import json
import sys

from rich.console import Console
from rich.text import Text


def main(
    *, kafka: str | None = None, database: str | None = None, as_json: bool = False, stays: bool = False
) -> int:
    """Runs the demo, prints what it showed and returns the exit code.

    0 if every promise held, 1 if not or if not everything was counted in time, 3 if something could not be
    reached or started. With `as_json` the steps go to stderr, and the last line of stdout is one JSON object.
    With `stays` two days are logged before, and the pages remain until an interrupt; the result is printed
    then.
    """
    from analyzer.demo.live_view import view_on
    from analyzer.demo.processes import ProcessNotStarted
    from analyzer.demo.results import summary
    from analyzer.demo.scenario import run_demo

    console = Console(stderr=as_json)
    try:
        with view_on(console) as view:
            results = asyncio.run(run_demo(view, kafka, database, stays=stays))
    except ProcessNotStarted as error:
        # As text: Rich takes the extra in gatelock[demo] for markup.
        Console(stderr=True).print(Text(str(error)), style="red", highlight=False, soft_wrap=True)
        return 3
    if as_json:
        sys.stdout.write(json.dumps(results.as_dict()) + "\n")
    else:
        console.print()
        for sentence in summary(results):
            console.print(sentence, highlight=False, soft_wrap=True)
    return 0 if results.is_successful else 1
