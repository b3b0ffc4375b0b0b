"""`gatelock billing report reconcile`: what a billing service has, next to what it has acknowledged."""

from __future__ import annotations

import random
import ssl
import time
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from click import Context
from click.exceptions import Exit

from analyzer.billing.days.day_rows import day_window
from analyzer.billing.hand_over.billing_services import SERVICES
from analyzer.billing.hand_over.deliveries import destination_name
from analyzer.billing.hand_over.delivery import SENDERS
from analyzer.billing.hand_over.event_requests import ServiceReader, Waits
from analyzer.billing.hand_over.reconciliation import CustomerSums, acknowledged_usage, customer_sums
from analyzer.billing.hand_over.service_sums import OTHERS
from analyzer.faces.cli.billing_options import ZoneOption, dates_of, zone_of
from analyzer.faces.cli.described_options import Argument, Option
from analyzer.faces.cli.exit_codes import FOUND, reporting_errors, usage_error
from analyzer.faces.cli.options import ConfigOption, JsonOption, load_settings, open_database
from analyzer.faces.cli.output import json_lines, say, table
from analyzer.faces.cli.verbs.report_sending import (
    TOKEN_NAME,
    delivery_failures,
    event_names,
    read_token,
    server_at,
)
from analyzer.kernel.database.installation_secrets import REFERENCES, ensure_secret
from analyzer.kernel.sentences import plural
from analyzer.plan.windows import Window

if TYPE_CHECKING:
    from decimal import Decimal

    from analyzer.billing.hand_over.billing_services import BillingService
    from gatekeeper.sources.timed_connection import ServerAddress


def reconcile(
    context: Context,
    what: Annotated[str, Argument(metavar="WHAT", help="day, week, month, or dates, as for `send`.")],
    when: Annotated[str, Argument(metavar="[DATE]", help="A date in it.")] = "yesterday",
    *,
    from_: Annotated[str, Option("--from", metavar="URL", help="Of the service, as in --to of `send`.")],
    format_: Annotated[str, Option("--format", help="The kind of the service.", words=(SERVICES,))],
    token_file: Annotated[
        Path | None, Option(metavar="FILE", help=f"With the API key; otherwise ${TOKEN_NAME}.")
    ] = None,
    account: Annotated[str, Option(metavar="NAME", help="As for `send`.")] = "",
    zone: ZoneOption = None,
    allow_http: Annotated[
        bool, Option("--allow-http", help="Ask another machine without encryption.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Compare what a billing service has with what it has acknowledged.

    Asks the service for its sums of a period, and shows them by event and customer, next to what it has
    acknowledged of closed days, corrections included, by the customers of now. Exit code 1 if a sum differs;
    3: the service does not answer. Services add up what they took within minutes.

    Example: gatelock billing report reconcile month --from URL --format lago
    """
    with reporting_errors(), open_database(context, config) as engine:
        settings = load_settings(context, config)
        service, server = SERVICES[format_], server_at("--from", from_, allow_http=allow_http)
        if server.prefix and not server.prefix.endswith(service.path):
            raise usage_error(f"--from {from_}: its path must end with {service.path}, or be left out")
        token, named = read_token(token_file), zone_of(settings, zone)
        first, last = dates_of(engine, what, when, named)
        period = Window(day_window(named, first).start_s, day_window(named, last).until_s)
        destination = destination_name(server, service.path, account, token)
        secret = ensure_secret(engine, REFERENCES)
        usage = acknowledged_usage(engine, destination, period, event_names(settings), secret)
        if not usage.events and not usage.remarks:
            say(f"nothing of {first} to {last} was handed over to {destination}", err=True)
            raise Exit(FOUND)
        with delivery_failures(), _readers(server, service, token) as readers:
            sums = [
                entry
                for event, by_customer in sorted(usage.events.items())
                for entry in customer_sums(
                    event, by_customer, _sums(readers, event, sorted(by_customer), period)
                )
            ]
        _show(sums, usage.remarks, as_json=json)


@contextmanager
def _readers(server: ServerAddress, service: BillingService, token: str) -> Iterator[list[ServiceReader]]:

    tls = ssl.create_default_context() if server.scheme == "https" else None
    waits = Waits(time.sleep, random.random, lambda sentence: say(sentence, err=True))
    count = SENDERS if service.events_max == 1 else 1
    readers = [ServiceReader(server, service, token, waits, tls) for _ in range(count)]
    try:
        yield readers
    finally:
        for reader in readers:
            reader.close()


def _sums(
    readers: Sequence[ServiceReader], event: str, customers: Sequence[str], period: Window
) -> Mapping[str, Decimal]:
    """The sums of the service, each connection asking for a share of the customers."""
    shares = [customers[number :: len(readers)] for number in range(len(readers))]
    with ThreadPoolExecutor(len(readers)) as pool:
        waiting = [
            pool.submit(reader.sums, event, share, period)
            for reader, share in zip(readers, shares, strict=True)
            if share or len(readers) == 1
        ]
        try:
            return ChainMap(*(dict(future.result()) for future in waiting))
        except BaseException:
            for reader in readers:
                reader.stop()
            raise


def _show(sums: Sequence[CustomerSums], remarks: Sequence[str], *, as_json: bool) -> None:
    """Prints the sums, those that differ first. Exits with 1 if any does."""
    by_difference = sorted(sums, key=lambda entry: not entry.difference)
    if as_json:
        json_lines(
            {
                "event": entry.event, "customer": entry.customer, "acknowledged": entry.acknowledged,
                "at_service": _number(entry.at_service), "difference": _number(entry.difference),
            }
            for entry in by_difference
        )  # fmt: skip
    else:
        rows = (
            [entry.event, entry.customer if entry.customer != OTHERS else "(others)",
             entry.acknowledged, _number(entry.at_service), _number(entry.difference)]
            for entry in by_difference
        )  # fmt: skip
        table(
            ["event", "customer", "acknowledged", "at service", "difference"], rows, "both sides have nothing"
        )
    for remark in remarks:
        say(f"{remark}: NOT EQUAL", err=as_json)
    differing = sum(1 for entry in sums if entry.difference)
    verdict = f"{differing:,} NOT EQUAL" if differing else "equal"
    say(f"{plural(len(sums), 'sum')} compared: {verdict}", err=as_json)
    if differing or remarks:
        raise Exit(FOUND)


def _number(value: Decimal) -> int | float:
    return int(value) if value == int(value) else float(value)
