"""`gatelock billing report send`: usage of closed days for a billing service, delivered once."""

from __future__ import annotations

import os
import random
import re
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from click import Context
from click.exceptions import Exit

from analyzer.billing.hand_over.billing_services import SERVICES
from analyzer.billing.hand_over.deliveries import delivering, destination_name, stored_deliveries
from analyzer.billing.hand_over.delivery import SENDERS, Courier
from analyzer.billing.hand_over.event_requests import EventSender, Waits, keeping_sleep
from analyzer.billing.hand_over.live_push import LIVE, LiveDays
from analyzer.billing.hand_over.live_usage import LiveUsage
from analyzer.billing.hand_over.prepared_events import EventNames, Examined, examine, why_not, why_unsure
from analyzer.billing.hand_over.usage_events import Customers, InvalidCustomers
from analyzer.billing.reports.day_report import days_between
from analyzer.billing.reports.incomplete_days import incomplete_days
from analyzer.billing.reports.usage_amounts import BOOKED, COUNTED, usage_amounts, usage_parts
from analyzer.faces.cli.billing_options import (
    CORRECTIONS,
    Dates,
    FrozenGroupingOption,
    MeterOption,
    ZoneOption,
    dates_of,
    of_known_names,
    zone_of,
)
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, UNREACHABLE, reporting_errors, usage_error
from analyzer.faces.cli.operator import operator_name
from analyzer.faces.cli.options import ConfigOption, DryRunOption, JsonOption, load_settings, open_database
from analyzer.faces.cli.output import outcome, say
from analyzer.faces.cli.report_output import progress_bar
from analyzer.judging.locks.lock_feed import new_mark
from analyzer.kernel.database.engine import reading
from analyzer.kernel.database.installation_secrets import REFERENCES, ensure_secret
from analyzer.kernel.errors import DeliveryFailed, DeliveryLost
from analyzer.kernel.sentences import plural
from analyzer.kernel.tables.billing_tables import deliveries
from analyzer.plan.meters import JOINS
from gatekeeper.sources.timed_connection import parse_server_url

if TYPE_CHECKING:
    import sqlalchemy as sa

    from analyzer.billing.days.day_rows import Day
    from analyzer.billing.hand_over.billing_services import BillingService
    from analyzer.billing.hand_over.deliveries import Deliveries, Delivery
    from analyzer.billing.hand_over.usage_events import EventMaker
    from analyzer.billing.reports.usage_amounts import UsagePart
    from analyzer.config.settings import Settings
    from gatekeeper.sources.timed_connection import ServerAddress

TOKEN_NAME = "GATELOCK_SEND_TOKEN"  # noqa: S105 - the name of a variable


class Prepared(NamedTuple):
    """The days that events are of, and their parts."""

    days: Sequence[tuple[str, Day | None]]
    parts: Sequence[tuple[UsagePart, EventMaker]]


class HandOver(NamedTuple):
    """A hand-over as it was asked for."""

    engine: sa.Engine
    service: BillingService
    server: ServerAddress
    token: str
    skip_unknown: bool
    repeat: bool
    as_json: bool


def send(
    context: Context,
    what: Annotated[str, Argument(metavar="WHAT", help="As for `gatelock billing report write`.")],
    when: Annotated[
        str, Argument(metavar="[DATE]", help="As for `gatelock billing report write`.")
    ] = "yesterday",
    *,
    to: Annotated[str, Option(metavar="URL", help="Of the billing service.")],
    format_: Annotated[str, Option("--format", help="The kind of the service.", words=(SERVICES,))],
    token_file: Annotated[
        Path | None, Option(metavar="FILE", help=f"With the API key; otherwise ${TOKEN_NAME}.")
    ] = None,
    account: Annotated[
        str, Option(metavar="NAME", help="Tells accounts with one URL apart in the record.")
    ] = "",
    zone: ZoneOption = None,
    by: FrozenGroupingOption = "caller",
    meter: MeterOption = None,
    skip_unknown: Annotated[
        bool, Option("--skip-unknown", help="Leave callers without a known customer out, for good.")
    ] = False,
    repeat: Annotated[
        bool, Option("--repeat", help="Send again what the service may have, but have forgotten.")
    ] = False,
    allow_http: Annotated[
        bool, Option("--allow-http", help="Send without encryption to another machine.")
    ] = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Deliver the usage of closed days to a billing service.

    The database records what the service has acknowledged: another run, also after a kill, continues behind
    it; `gatelock billing days list` shows it. Each event has an identifier that never changes, by which the
    service knows it again. `billing report send corrections` delivers what is booked on a day. Exit code 1:
    the service refuses an event, or the customer of a caller is not known; 3: the service does not answer.

    Example: gatelock billing report send day --to URL --format lago
    """
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        service, server = SERVICES[format_], server_at("--to", to, allow_http=allow_http)
        token = read_token(token_file)
        named = zone_of(settings, zone)
        prepared = prepare(engine, settings, what, dates_of(engine, what, when, named), named, by, meter)
        destination = destination_name(server, service.path, account, token)
        hand_over = HandOver(engine, service, server, token, skip_unknown, repeat, json)
        with delivery_failures(), _record(engine, destination, format_) as record:
            _require_one_grouping(engine, destination, format_, prepared)
            if not dry_run:
                _settle(hand_over, prepared, record, event_names(settings), named)
            examined = _examined(hand_over, prepared, record)
            if not dry_run:
                _deliver(hand_over, prepared, record, sum(part.events + part.left_out for part in examined))
            for (part, _), part_events in zip(prepared.parts, examined, strict=True):
                _say(part, record.of(part), part_events, destination, is_dry=dry_run, as_json=json)


def server_at(option: str, url: str, *, allow_http: bool) -> ServerAddress:
    """The server that an option names. Exits with 2 for a URL that is none, or not encrypted."""
    try:
        server = parse_server_url(url)
    except ValueError as error:
        raise usage_error(f"{option} {error}") from error
    if server.scheme == "http" and not server.is_local and not allow_http:
        raise usage_error(f"{option} {url}: use https, so that the key and the usage are encrypted")
    return server


def read_token(file: Path | None) -> str:
    """The API key of a file, or of the environment. Exits with 2 for a text that cannot be one."""
    try:
        token = os.environ.get(TOKEN_NAME, "") if file is None else file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is not text"
        raise usage_error(f"--token-file {file}: {problem}") from error
    if not re.fullmatch(r"[!-~]*", token) or (file is not None and not token):
        raise usage_error(f"{file or TOKEN_NAME}: expected a key, one word in ASCII")
    return token


def prepare(
    engine: sa.Engine,
    settings: Settings,
    what: str,
    dates: Dates,
    zone: str,
    by: str,
    meter: str | None,
) -> Prepared:
    """The parts that events are made of. Exits with 1 if a day is not closed, or cannot be handed over."""
    days = days_between(engine, zone, *dates)
    waiting = [date for date, day in days if day is None]
    if waiting:
        say(f"{waiting[0]} ({zone}) is not closed: events are made of closed days alone", err=True)
        raise Exit(FOUND)
    kinds = BOOKED if what == CORRECTIONS else COUNTED
    with of_known_names(engine, by):
        parts = usage_parts(engine, zone, [date for date, _ in days], by, meter, kinds)
    if what != CORRECTIONS:
        for incomplete in incomplete_days(engine, [day for _, day in days if day is not None], by):
            say(f"incomplete: {incomplete}", err=True)
    names = event_names(settings)
    secret = ensure_secret(engine, REFERENCES)
    made = []
    for part in parts:
        if part.kind == "late" and not JOINS[part.join].adds_up:
            # By how much the largest value of the day grew is not known.
            if next(usage_amounts(engine, part), None) is not None:
                say(f"{part}: left out, because largest values do not add up", err=True)
            continue
        made.append((part, names.maker(secret, part)))
    return Prepared(days, made)


def event_names(settings: Settings) -> EventNames:
    """The names by which services know meters and callers. Exits with 2 for a file of customers in error."""
    return EventNames(settings.billing.events, settings.units(), _customers(settings))


def _customers(settings: Settings) -> Customers:

    file = settings.billing.customers_file
    try:
        return Customers() if file is None else Customers.read(file)
    except InvalidCustomers as error:
        raise usage_error(f"[billing] customers_file: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise usage_error(f"[billing] customers_file: {file}: {problem}") from error


@contextmanager
def delivery_failures() -> Iterator[None]:
    """Exits with 1 when a hand-over cannot be done, with 3 when it may be done later."""
    try:
        yield
    except (DeliveryFailed, DeliveryLost) as error:
        say(str(error), err=True)
        is_away = isinstance(error, DeliveryFailed) and error.is_away
        raise Exit(UNREACHABLE if is_away else FOUND) from error


@contextmanager
def _record(engine: sa.Engine, destination: str, format_: str) -> Iterator[Deliveries]:

    with delivering(engine, destination, format_, operator_name(), new_mark) as record:
        yield record


def _examined(hand_over: HandOver, prepared: Prepared, record: Deliveries) -> list[Examined]:
    """The amounts of each part that are to be sent. Raises DeliveryFailed if not all can be."""
    now_s, restored_ms, examined = record.now_ms() / 1000, record.restored_ms(), []
    live = LiveUsage(hand_over.engine, record)
    for part, maker in prepared.parts:
        delivery = record.of(part)
        if not (hand_over.repeat or record.has(part)) and (
            problem := why_unsure(part, hand_over.service, restored_ms)
        ):
            raise DeliveryFailed(problem)
        amounts = live.without_pushed(part, usage_amounts(hand_over.engine, part, delivery.place))
        events = (
            Examined() if delivery.finished_ms is not None else examine(amounts, maker, hand_over.service)
        )
        if problem := why_not(part, events, hand_over.service, now_s, skip_unknown=hand_over.skip_unknown):
            raise DeliveryFailed(problem)
        record.keep()
        examined.append(events)
    return examined


def _require_one_grouping(engine: sa.Engine, destination: str, format_: str, prepared: Prepared) -> None:
    """Raises DeliveryFailed for days that were pushed by another grouping; names other places of a push."""
    with reading(engine) as db:
        pushed = stored_deliveries(db, deliveries.c.format == format_, deliveries.c.kind == LIVE)
    parts = {(part.day.zone, part.day.date, part.meter): part for part, _ in prepared.parts}
    for one in pushed:
        part = parts.get((one.zone, one.date, one.meter))
        if part is None or part.kind != "frozen":
            continue
        if one.destination != destination:
            say(f"{part}: was pushed to {one.destination}, too: is it another account?", err=True)
        elif one.grouping != part.grouping:
            raise DeliveryFailed(f"{part}: was pushed by {one.grouping}: write --by {one.grouping}")


def _settle(
    hand_over: HandOver, prepared: Prepared, record: Deliveries, names: EventNames, zone: str
) -> None:
    """Makes exact what was pushed of the days before they were closed."""
    dates = sorted({part.day.date for part, _ in prepared.parts if part.kind == "frozen"})
    with _senders(hand_over, record) as senders:
        courier = _courier(hand_over, senders, record, lambda _: None)
        live = LiveUsage(hand_over.engine, record)
        LiveDays(hand_over.engine, record, live, courier, names, repeats=hand_over.repeat).settle(zone, dates)


def _courier(
    hand_over: HandOver, senders: Sequence[EventSender], record: Deliveries, progress: Callable[[int], None]
) -> Courier:

    live = LiveUsage(hand_over.engine, record)
    return Courier(hand_over.service, senders, record, progress, repeats=hand_over.repeat, live=live)


def _deliver(hand_over: HandOver, prepared: Prepared, record: Deliveries, total: int) -> None:

    with _senders(hand_over, record) as senders, progress_bar("events", total) as advance:
        courier = _courier(hand_over, senders, record, advance)
        for part, maker in prepared.parts:
            courier.deliver(part, maker, partial(usage_amounts, hand_over.engine, part))


@contextmanager
def _senders(hand_over: HandOver, record: Deliveries) -> Iterator[list[EventSender]]:

    tls = ssl.create_default_context() if hand_over.server.scheme == "https" else None
    waits = Waits(
        keeping_sleep(record.keep, time.sleep), random.random, lambda sentence: say(sentence, err=True)
    )
    count = SENDERS if hand_over.service.events_max == 1 else 1
    senders = [
        EventSender(hand_over.server, hand_over.service, hand_over.token, waits, tls) for _ in range(count)
    ]
    try:
        yield senders
    finally:
        for sender in senders:
            sender.close()


def _say(
    part: UsagePart, delivery: Delivery, examined: Examined, destination: str, *, is_dry: bool, as_json: bool
) -> None:
    left_out = examined.left_out if is_dry else delivery.left_out
    value = examined.left_out_value if is_dry else delivery.left_out_amount
    without = f"; {plural(left_out, 'amount')} without a customer left out: {value:,}" if left_out else ""
    if is_dry:
        sentence = f"{part}: {plural(examined.events, 'event')} to send, {examined.value:,} in all{without}"
    else:
        # After a restore the service may have them with other amounts, under the same identifiers.
        repeated = f" ({delivery.known:,} it had already: `report reconcile` compares the amounts)"
        repeated = repeated if delivery.known else ""
        sent = f"{plural(delivery.events, 'event')} acknowledged{repeated}, {delivery.amount:,} in all"
        now = "" if examined.events or examined.left_out else "; nothing was left to send"
        sentence = f"{part}: {sent}{without}{now}"
    fields = {
        "destination": destination, "day": part.day.date, "zone": part.day.zone, "by": part.grouping,
        "meter": part.meter, "kind": part.kind, "to_send": examined.events if is_dry else 0,
        "sent": 0 if is_dry else examined.events, "events": delivery.events, "amount": delivery.amount,
        "known": delivery.known, "left_out": left_out, "left_out_amount": value,
    }  # fmt: skip
    outcome(sentence, fields, as_json=as_json)
