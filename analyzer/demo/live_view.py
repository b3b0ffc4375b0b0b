"""Progress of the demo: a live view in a terminal, a log of steps elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analyzer.demo.load_generator import CALLERS, NOISY, ClientResponse
from analyzer.demo.results import p95_ms

RECENT_S = 2.0
BAR_CHARACTERS = 26
# Values at which a bar is full.
FULL_WAIT_MS, FULL_ADMITTED_PER_S, FULL_REFUSED_PER_S = 250, 100, 150


class LiveView(Protocol):
    """Shows the steps of the demo, and perhaps its current figures."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def step(self, sentence: str) -> None: ...
    def show(self, responses: Sequence[ClientResponse], sent: int, counted: int) -> None: ...


class StepLog:
    """Prints one line for each step, with the second at which it happened."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def step(self, sentence: str) -> None:
        at_s = time.monotonic() - self._began_s
        self._console.print(f"{at_s:5.1f} s  {sentence}", highlight=False, soft_wrap=True)

    def show(self, responses: Sequence[ClientResponse], sent: int, counted: int) -> None:
        pass


class TerminalScreen(StepLog):
    """Prints the steps above a table of current figures."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, responses: Sequence[ClientResponse], sent: int, counted: int) -> None:
        """Shows the responses of the last two seconds."""
        recent = _recent(responses, time.time() - RECENT_S)
        noisy = [response for response in recent if response.caller == NOISY]
        admitted = sum(response.status == 200 for response in noisy)
        table = Table.grid(padding=(0, 2))
        for width in (19, 8, BAR_CHARACTERS, 20):  # fixed, so that the columns do not move
            table.add_column(width=width, no_wrap=True)
        wait_ms = p95_ms(response.took_s for response in recent if response.caller != NOISY)
        table.add_row(f"{CALLERS} ordinary callers", "wait", bar(wait_ms / FULL_WAIT_MS), f"{wait_ms:.0f} ms")
        rate = admitted / RECENT_S
        table.add_row(
            "1 noisy caller", "admitted", bar(rate / FULL_ADMITTED_PER_S, "red"), f"{rate:.0f} a second"
        )
        rate = (len(noisy) - admitted) / RECENT_S
        table.add_row("", "refused", bar(rate / FULL_REFUSED_PER_S, "yellow"), f"{rate:.0f} a second")
        table.add_row("analyzer", "counted", Text(f"{counted:,}"), f"of {sent:,} requests")
        self._live.update(table)


def _recent(responses: Sequence[ClientResponse], since_s: float) -> list[ClientResponse]:
    recent = []
    for response in reversed(responses):
        if response.at_s < since_s:
            break
        recent.append(response)
    return recent


def bar(share: float, style: str = "green") -> Text:
    """Returns a bar that is full at a share of 1."""
    return Text("█" * round(min(1.0, max(0.0, share)) * BAR_CHARACTERS), style=style)


def view_on(console: Console) -> LiveView:
    """Returns the view that fits `console`."""
    return TerminalScreen(console) if console.is_terminal and sys.stdout.isatty() else StepLog(console)
