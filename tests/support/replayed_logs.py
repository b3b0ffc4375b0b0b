"""Installations that count a file by a mapping, and what is stored of it, for tests of replays."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from analyzer.kernel.database.engine import open_engine, reading
from analyzer.kernel.tables.schema import day_counts, offsets, rejects
from tests.support.command_line import run_command
from tests.support.stored_counts import stored_counts, stored_totals

Event = Mapping[str, object]
# Two readings of one record: another caller, another time, another weight, ids, and a field that may lack.
BEFORE = {"caller": "owner", "time": "ts", "extra": ""}
AFTER = {"caller": "agent", "time": "at", "extra": ""}
CONFIGURATION = """
[database]
url = "{url}"
[analyzer]
log = "json"
[billing]
grace = 0
groupings = ["caller", "caller+resource"]
[[sources]]
name = "web"
file = "{log}"
caller = ["api_key"]
{extra}
[sources.fields]
time = {{ path = "{time}", unit = "s" }}
api_key = "{caller}"
resource = {{ path = "path", routes = ["/a", "/b"] }}
bytes = "bytes"
id = "id"
[[meters]]
name = "sent"
sum = "bytes"
[[policies]]
name = "daily"
kind = "quota"
limit = 4
window = {{ per = "month" }}
"""


class FileInstallation:
    """A configuration, a database and one file."""

    def __init__(self, folder: Path, url: str, log: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "gatelock.toml"
        self.log = log
        self.url = url
        self.engine = open_engine(url)

    def configure(self, mapping: Mapping[str, str]) -> None:
        self.file.write_text(CONFIGURATION.format(url=self.url, log=self.log, **mapping))

    def gatelock(self, *arguments: str, codes: Sequence[int] = (0,)) -> Any:
        result = run_command(["--config", str(self.file), *arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code in codes, result.output
        return result

    def count(self, mapping: Mapping[str, str]) -> None:
        """Imports the file by a mapping, which is in force from then on."""
        self.configure(mapping)
        self.gatelock("upkeep", "import", str(self.log), "--source", "web", codes=(0, 1))

    def put_in_force(self, mapping: Mapping[str, str]) -> None:
        self.configure(mapping)
        self.gatelock("policies", "apply")

    def replay(self, *options: str) -> int:
        """Counts the file again; returns the number of the replay."""
        result = self.gatelock(
            "upkeep", "replay", "start", str(self.log), "--source", "web", "--json", *options
        )
        return int(json.loads(result.stdout.splitlines()[-1])["replay"])

    def stored(self) -> dict[str, object]:
        """Returns everything that a replay must make equal to a count from the start."""
        columns = ("seen", "counted", "duplicate", "dead", "late", "renamed")
        with reading(self.engine) as db:
            ledger = db.execute(sa.select(*(offsets.c[name] for name in columns))).all()
            days = sa.select(day_counts.c.day_s, sa.func.sum(day_counts.c.requests)).group_by(
                day_counts.c.day_s
            )
            return {
                "counts": stored_counts(db),
                "totals": {at: used for at, used in stored_totals(db).items() if used},
                "ledger": [tuple(row) for row in ledger],
                "days": {day_s: int(number) for day_s, number in db.execute(days) if number},
                "rejected": set(db.execute(sa.select(rejects.c.offset)).scalars()),
            }

    def close(self) -> None:
        self.engine.dispose()


def write_log(log: Path, events: Sequence[Event | str]) -> None:
    """Writes a line for each event; a text is a line as it is."""
    lines = (event if isinstance(event, str) else json.dumps(event) for event in events)
    log.write_text("".join(f"{line}\n" for line in lines))


def event(at_s: int, owner: object, agent: object, **rest: object) -> Event:
    return {"ts": at_s, "at": at_s, "owner": owner, "agent": agent, "path": "/a", "bytes": 10, **rest}
