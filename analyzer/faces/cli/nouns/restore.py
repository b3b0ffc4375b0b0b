"""`gatelock restore`: what a restored database lacks, and days that are closed again as they were billed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.acting.foreseen import Foreseen
from analyzer.billing.hand_over.deliveries import unknown_deliveries
from analyzer.billing.reports.file_audit import FileUnreadable
from analyzer.build import build_restore
from analyzer.faces.cli.audited_days import audit_day, digest_keys, say_differences
from analyzer.faces.cli.confirmation import YesOption, is_confirmed
from analyzer.faces.cli.described_options import Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import (
    ConfigOption,
    DryRunOption,
    JsonOption,
    ReasonOption,
    load_settings,
    open_database,
    require_reason,
)
from analyzer.faces.cli.output import json_lines, outcome, say
from analyzer.faces.cli.report_output import progress_bar
from analyzer.kernel.database.chain import accept_restore, require_witnessed
from analyzer.kernel.errors import ChainCut
from analyzer.kernel.sentences import plural

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.restore.kept_days import KeptDay
    from analyzer.restore.restore_run import MissingDays

FROM = Option("--from", metavar="FOLDER", help="With kept reports and their manifests, or folders of them.")


def check(
    context: Context, from_: Annotated[Path, FROM], config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Say what a restored database lacks, and change nothing.

    Compares the database with its witness and with the manifests of kept reports: days that are not closed,
    whether the logs still have their offsets, other digests, another key of references, hand-overs that are
    not known. Exit code 1 if something is missing.

    Example: gatelock restore check --from reports
    """
    with reporting_errors(), open_database(context, config) as engine:
        settings, kept = load_settings(context, config), _read(from_)
        witness = _differs_from_witness(engine)
        missing = build_restore(settings, engine).missing(kept)
        unknown = unknown_deliveries(engine, {(day.zone, day.date) for day in kept})
        if json:
            json_lines(
                [
                    {
                        "kept": len(kept), "equal": missing.equal, "problems": list(missing.problems),
                        "to_close": [{"day": day.date, "zone": day.zone} for day in missing.to_close],
                        "differing": list(missing.differing), "witness": witness,
                        "unknown_deliveries": list(unknown),
                    }
                ]
            )  # fmt: skip
        else:
            _say_missing(kept, missing)
            for sentence in (*([witness] if witness else ()), *unknown):
                say(sentence)
        if missing.to_close or missing.problems or missing.differing or witness or unknown:
            raise Exit(FOUND)


def days(
    context: Context,
    reason: ReasonOption,
    from_: Annotated[Path | None, FROM] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Close the days again that a restored database lacks, each with the cut that it had.

    Run it before analyzers start. Each log is counted from the restored position up to the cut in the day's
    manifest, and not one record further. If the digest is then that of the manifest, the day is the same, to
    the byte; otherwise the difference is named. It also says that the database was restored, which without
    kept reports is all that it does: with a witness, no day is closed and nothing is handed over before. Exit
    code 1 if a day cannot be closed again, or is another one than before; without --from, if the witness has
    seen nothing that is missing.

    Example: gatelock restore days --from reports --reason "the disk broke"
    """
    reason_text = require_reason(reason)
    with reporting_errors(), open_database(context, config) as engine:
        if from_ is None:
            _accept(engine, reason_text, as_json=json)
            return
        settings, kept = load_settings(context, config), _read(from_)
        restore = build_restore(settings, engine)
        missing = restore.missing(kept)
        if not json:
            _say_missing(kept, missing)
        problems = [*missing.problems, *missing.differing]
        if json:
            json_lines({"problem": problem} for problem in problems)
        if not missing.to_close and (problems or not _differs_from_witness(engine)):
            raise Exit(FOUND if problems else 0)
        if not is_confirmed(_foreseen(missing), yes=yes, dry_run=dry_run, as_json=json):
            return
        accept_restore(engine, operator_name(), reason_text, is_known=True)
        is_same = not problems
        for day in missing.to_close:
            with progress_bar(f"{day}", sum(day.cuts.values())) as advance:
                restored = restore.close_again(day, advance)
            fields = {
                "day": day.date, "zone": day.zone, "equal": restored.is_same,
                "requests": restored.day.requests, "digest": restored.day.digest,
                "differences": list(restored.differences),
            }  # fmt: skip
            outcome(restored.sentence, fields, as_json=json)
            audited = audit_day(engine, restored.day, digest_keys(settings))
            say_differences([audited])
            is_same = is_same and restored.is_same and audited.equal
        if not is_same:
            raise Exit(FOUND)


def _accept(engine: sa.Engine, reason: str, *, as_json: bool) -> None:
    """Says that it was a restore. Exits with 1 if the chain contains all that its witness has seen."""
    try:
        seen = accept_restore(engine, operator_name(), reason)
    except LookupError as error:
        say(str(error), err=True)
        raise Exit(FOUND) from error
    number = 0 if seen is None else seen.number
    sentence = f"days are closed again; the acts up to {number} that the witness has seen are lost"
    outcome(sentence, {"witness_entries": number}, as_json=as_json)


def _read(folder: Path) -> list[KeptDay]:
    """The closed days of the manifests. Exits with 2 if there is none, or one cannot be read."""
    from analyzer.restore.kept_days import read_kept_days

    try:
        kept = read_kept_days(folder)
    except FileUnreadable as error:
        raise usage_error(str(error)) from error
    if not kept:
        raise usage_error(f"--from {folder}: no manifest of a closed day is there")
    return kept


def _differs_from_witness(engine: sa.Engine) -> str:
    try:
        require_witnessed(engine)
    except ChainCut as error:
        return str(error)
    return ""


def _say_missing(kept: Sequence[KeptDay], missing: MissingDays) -> None:
    say(f"{plural(len(kept), 'day')} in manifests: {missing.equal:,} closed, with the same digest")
    for day in missing.to_close:
        say(f"{day}: not closed; its log can be counted up to the cut that it had")
    for sentence in (*missing.differing, *missing.problems):
        say(sentence)


def _foreseen(missing: MissingDays) -> Foreseen:
    if not missing.to_close:
        return Foreseen(["the acts since the backup are lost, and no day with them"], {"days": 0})
    first, last = missing.to_close[0], missing.to_close[-1]
    span = f"{first}" if first == last else f"{first} to {last}"
    sentence = f"{plural(len(missing.to_close), 'day')} are closed again: {span}"
    return Foreseen([sentence.replace("1 day are", "1 day is")], {"days": len(missing.to_close)})
