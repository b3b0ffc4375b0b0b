"""What a person sees: a calm live view in a terminal, the log of steps without one."""

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

from analyzer.demo.load_generator import NOISY, ClientResponse
from analyzer.demo.results import p95_ms

LOOK_BACK_S = 2.0
BAR = 26  # characters


class LiveView(Protocol):
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def step(self, sentence: str) -> None: ...
    def show(self, answers: Sequence[ClientResponse], counted: int) -> None: ...


class StepLog:
    """One line a step, with the second at which it happened."""

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
        took_s = time.monotonic() - self._began_s
        self._console.print(f"{took_s:5.1f} s  {sentence}", highlight=False, soft_wrap=True)

    def show(self, answers: Sequence[ClientResponse], counted: int) -> None:
        pass


class TerminalScreen(StepLog):
    """The same steps above a few figures that move."""

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

    def show(self, answers: Sequence[ClientResponse], counted: int) -> None:
        """The last two seconds, as they look from outside."""
        since_s = time.time() - LOOK_BACK_S
        recent = []
        for answer in reversed(answers):
            if answer.at_s < since_s:
                break
            recent.append(answer)
        noisy = [answer for answer in recent if answer.caller == NOISY]
        passed = sum(answer.status == 200 for answer in noisy)
        table = Table.grid(padding=(0, 2))
        for width in (19, 8, BAR, 20):  # fixed: what stands still can be read
            table.add_column(width=width, no_wrap=True)
        waits = p95_ms(answer.took_s for answer in recent if answer.caller != NOISY)
        table.add_row("40 ordinary callers", "wait", bar(waits / 250), f"{waits:.0f} ms")
        rate = passed / LOOK_BACK_S
        table.add_row("one noisy caller", "passes", bar(rate / 100, "red"), f"{rate:.0f} a second")
        rate = (len(noisy) - passed) / LOOK_BACK_S
        table.add_row("", "refused", bar(rate / 150, "yellow"), f"{rate:.0f} a second")
        table.add_row("analyzer", "counted", Text(f"{counted:,}"), f"of {len(answers):,} requests")
        self._live.update(table)


def bar(share: float, style: str = "green", width: int = BAR) -> Text:
    return Text("█" * round(min(1.0, max(0.0, share)) * width), style=style)


def view_for(console: Console) -> LiveView:
    return TerminalScreen(console) if console.is_terminal and sys.stdout.isatty() else StepLog(console)
