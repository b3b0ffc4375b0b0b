"""`gatelock check`: whether a configuration can be used, offline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from analyzer.cli.exit_codes import FOUND, reporting_errors
from analyzer.cli.options import ConfigOption, JsonOption, a_source_to_add, config_file

if TYPE_CHECKING:
    from analyzer.config.diagnostics.faults import ConfigFault
    from analyzer.config.settings import Settings
    from analyzer.core.counting.meters import Meter
    from analyzer.core.records.mapping import Condition


def check(context: typer.Context, config: ConfigOption = None, json: JsonOption = False) -> None:
    """Find every fault of the configuration.

    Each is told with its line and its cure; without any, what the configuration does. Offline. Exit code 1
    when there is a fault.
    """
    from analyzer.config.diagnostics.faults import ConfigFault, ConfigInvalid
    from analyzer.config.settings import load

    with reporting_errors():
        file = config_file(context, config)
        shown = str(file) if file is not None else "no file"
        faults: tuple[ConfigFault, ...] = ()
        settings = None
        try:
            settings = load(file)
        except ConfigInvalid as faulty:
            faults = faulty.faults
        else:
            if not settings.sources:
                faults = (ConfigFault(shown, None, "sources", "nothing is read", a_source_to_add(file)),)
        _say(shown, faults, settings, as_json=json)
        if faults:
            raise typer.Exit(FOUND)


def _say(shown: str, faults: tuple[ConfigFault, ...], settings: Settings | None, *, as_json: bool) -> None:
    from dataclasses import asdict

    from analyzer.cli.output import json_lines

    if as_json:
        about = {} if faults or settings is None else _about(settings)
        json_lines([{"file": shown, "faults": [asdict(fault) for fault in faults], **about}])
        return
    for fault in faults:
        typer.echo(str(fault))
    if faults:
        typer.echo(f"\n{shown}: {len(faults)} fault{'s' * (len(faults) > 1)}", err=True)
    elif settings is not None:
        typer.echo("\n".join([f"{shown}: nothing is wrong", "", *_in_words(settings)]))


def _about(settings: Settings) -> dict[str, object]:
    from analyzer.core.counting.meters import BUCKET_S
    from analyzer.core.judging.delay_bound import own_delay
    from analyzer.core.judging.kinds import kind_of

    plan = settings.plan()
    return {
        "database": settings.database.shown,
        "sources": [{"name": each.name, "topic": each.topic, "file": each.file} for each in settings.sources],
        "groupings": list(plan.groupings),
        "meters": [{"name": each.name, "width_s": BUCKET_S} for each in plan.meters],
        "policies": [kind_of(each).describe(each) for each in plan.policies],
        "delay_s": round(own_delay(settings.analyzer.flush_every).total_s, 3),
    }


def _in_words(settings: Settings) -> Iterator[str]:
    from analyzer.core.judging.kinds import kind_of

    plan = settings.plan()
    yield f"database    {settings.database.shown}"
    for source in settings.sources:
        where = f"topic {source.topic}" if source.topic else f"file {source.file}"
        callers = " or ".join(source.callers)
        yield f"source      {source.name}: {where}, {source.format}; the caller is {callers}"
    yield f"counted by  {', '.join(plan.groupings)}"
    for meter in plan.meters:
        yield f"meter       {meter_in_words(meter, _unit(settings, meter))}"
    for policy in plan.policies:
        yield f"policy      {kind_of(policy).describe(policy)}"
    if plan.policies:
        yield f"delay       {delay_in_words(settings.analyzer.flush_every)}"
    if not plan.policies:
        yield "policy      none: everything is counted, nobody is refused"


def _unit(settings: Settings, meter: Meter) -> str:
    """In what a meter's value, and so its limits, are given."""
    from analyzer.core.records.mapping import NumberField

    fields = [mapping.fields.get(meter.field or "") for mapping in settings.mappings().values()]
    kinds = {field.kind for field in fields if isinstance(field, NumberField)}
    return {"duration": "microseconds", "decimal": "millionths"}.get(next(iter(kinds), ""), "")


def meter_in_words(meter: Meter, unit: str) -> str:
    """One meter: what it counts, under which conditions, how finely."""
    from analyzer.core.counting.meters import BUCKET_S, JOINS

    what = f"{JOINS[meter.join].phrase} {meter.field}" if meter.field else "one for each request"
    unit = f" in {unit}" if unit else ""
    return f"{meter.name}: {what}{unit}{_conditions(meter.where)}; kept in stretches of {BUCKET_S} s"


def _conditions(where: tuple[Condition, ...]) -> str:
    each = [f"{name} is {' or '.join(wanted)}" for name, wanted in where]
    return f" where {' and '.join(each)}" if each else ""


def delay_in_words(flush_s: float) -> str:
    """How late a lock comes, and of what that is made."""
    from analyzer.core.judging.delay_bound import own_delay

    delay = own_delay(flush_s)
    return (
        f"gates close within about {delay.total_s:.1f} s of the record's being in the log: "
        f"fetch {delay.fetch_s:g}, flush {delay.flush_s:g}, commit {delay.commit_s:g}, poll {delay.poll_s:g}"
    )
