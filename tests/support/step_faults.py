"""Steps of a process in its database, at each of which it may be killed or lose its connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

BEFORE_COMMIT, AFTER_COMMIT = "before commit", "after commit"


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the product catches it."""


def watch_steps(patch: pytest.MonkeyPatch, engine: sa.Engine, step: Callable[[str], None]) -> None:
    """Has `step` called at each step of `engine`, until `patch` is undone.

    A step comes before a statement, with its text, before a commit, and after a commit, when its reply may be
    lost. An error that `step` raises takes the place of the step, or of the commit's reply.
    """
    dialect: Any = engine.dialect
    commit = dialect.do_commit

    def before(do: Callable[..., object]) -> Callable[..., object]:
        def watched(cursor: object, statement: str, *rest: Any, **named: Any) -> object:
            step(statement)
            return do(cursor, statement, *rest, **named)

        return watched

    def do_commit(connection: object) -> None:
        step(BEFORE_COMMIT)
        commit(connection)
        step(AFTER_COMMIT)

    for name in ("do_execute", "do_executemany", "do_execute_no_params"):
        patch.setattr(dialect, name, before(getattr(dialect, name)))
    patch.setattr(dialect, "do_commit", do_commit)


def cut_off(dialect: Any) -> Exception:
    """Returns the driver's error for a server that is gone."""
    error: Exception = dialect.dbapi.OperationalError("server closed the connection unexpectedly")
    return error
