"""The web application of an installation, put together and served on the configured address."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from analyzer.alerts.message_rows import count_messages
from analyzer.callers.caller_document import caller_document
from analyzer.callers.caller_standing import caller_standing
from analyzer.config.settings import Settings
from analyzer.counting.traffic import shared_traffic
from analyzer.faces.api.callers_endpoint import add_callers_endpoint
from analyzer.faces.api.endpoint_table import ENDPOINTS
from analyzer.faces.api.endpoints import ApiContext
from analyzer.faces.api.event_stream import add_event_stream, installation_state
from analyzer.faces.api.serving_endpoints import READ_MS, add_endpoints
from analyzer.faces.app import AppState, create_app
from analyzer.faces.authentication import (
    Authenticator,
    Credentials,
    RefusalLog,
    RefusalRecorder,
    RequestRefused,
    is_loopback,
)
from analyzer.faces.feed.feed_cache import FeedCache
from analyzer.faces.feed.gates_endpoint import PendingStatuses, add_gates_endpoint
from analyzer.faces.feed.locks_endpoint import add_locks_endpoint
from analyzer.faces.feed.long_polls import LongPolls
from analyzer.faces.pages.serving_pages import EVENTS_PATH, add_pages
from analyzer.faces.pages.visitors import Visitors
from analyzer.faces.signals.health import Health
from analyzer.faces.signals.signal_table import standing_signals
from analyzer.faces.signals.status import installation_status
from analyzer.gates.fleet_summary import FleetSummary, fleet_summary
from analyzer.gates.gate_reports import gate_owners, reporting_gates, store_statuses
from analyzer.gates.refused_clients import store_refusals
from analyzer.gates.unmet_locks import number_of_unmet_locks
from analyzer.judging.locks.notify import listening
from analyzer.kernel.database.engine import Engine, bounded_reads
from analyzer.kernel.database.revisions import head, schema_problem
from analyzer.kernel.tokens import stored_tokens
from analyzer.server.connection_limits import OpenConnections, connections_max
from analyzer.server.server import CannotListen, serving
from analyzer.server.tls import TlsFiles
from gatekeeper.sources.sql import SqlSource

log = logging.getLogger(__name__)

READ_ONLY_YET = (
    "no token was made yet: programs on this machine may read over HTTP and report the status of gates, and "
    "nothing else; to act there, make a token: gatelock upkeep tokens create NAME --scope operate"
)


@contextmanager
def web_application(
    settings: Settings, engine: Engine, health: Health, source_problems: Callable[[], Mapping[str, str]]
) -> Iterator[tuple[str, int] | None]:
    """Serves health, metrics, the lock feed, the reports of gates and the views of callers.

    Yields host and port, None when off.

    Raises CannotListen, TlsFilesInvalid, StoreAway.
    """
    listen, tls = settings.analyzer.listen, _tls_files(settings)
    if listen is None:
        yield None
        return
    if not is_loopback(listen[0]):
        _require_tokens(settings.analyzer.http, engine)
        if tls is None:
            log.warning("tokens and locks cross the network unencrypted: set http_cert and http_key")
    database = settings.database.address
    with closing(SqlSource(database)) as source, closing(SqlSource(database)) as reader:
        feed = FeedCache(source, time.monotonic, reader, reader.version_mark)
        read_status = partial(installation_status, engine, head())
        connections = OpenConnections(connections_max())
        authenticator = Authenticator(
            partial(stored_tokens, engine), time.monotonic, connections.admitted, _on_refused(engine, health)
        )
        app = create_app(
            AppState(
                health,
                source_problems,
                read_status,
                partial(number_of_unmet_locks, engine),
                partial(_fleet, engine),
                partial(standing_signals, engine),
                partial(count_messages, engine),
                partial(schema_problem, url=database),
                authenticator,
            )
        )
        add_locks_endpoint(app, feed, authenticator)
        context = ApiContext(shared_traffic(bounded_reads(engine, READ_MS)), settings)
        add_endpoints(app, ENDPOINTS, context, authenticator)
        read_state = partial(installation_state, engine)
        add_event_stream(app, read_state, authenticator)
        visitors = Visitors(engine, authenticator)
        add_event_stream(app, read_state, visitors, EVENTS_PATH)
        add_pages(app, context, visitors)
        add_callers_endpoint(app, partial(_document_about, engine), authenticator)
        pending = PendingStatuses(partial(store_statuses, engine), partial(gate_owners, engine))
        add_gates_endpoint(app, pending, authenticator)
        health.on_feed_change = feed.notify
        if stored_tokens(engine).is_open:
            log.info(READ_ONLY_YET)
        long_polls = LongPolls(feed, authenticator)
        with (
            listening(engine, feed.notified, feed.has_waiting),
            serving(app, listen, tls, feed.close, long_polls, connections) as address,
        ):
            yield address


def _document_about(engine: Engine, caller: str) -> dict[str, object]:
    """Returns what a caller may know about itself. Raises StoreAway, SchemaBehind."""
    return caller_document(caller_standing(engine, caller))


def _fleet(engine: Engine) -> FleetSummary:
    """Returns the gates in numbers. Raises StoreAway."""
    return fleet_summary(reporting_gates(engine))


def _on_refused(engine: Engine, health: Health) -> Callable[[RequestRefused, Credentials], None]:
    """Returns a function that counts, logs and stores refused requests."""
    refusals = RefusalLog(health.metrics.record_refusal, time.monotonic)
    recorder = RefusalRecorder(partial(store_refusals, engine), time.monotonic)

    def on_refused(refused: RequestRefused, credentials: Credentials) -> None:
        refusals.add(refused, credentials.client)
        recorder.add(refused.reason, credentials)

    return on_refused


def _require_tokens(address: str, engine: Engine) -> None:
    if not stored_tokens(engine).tokens:
        raise CannotListen(
            f"refusing to listen on {address}, where other machines could read the locks without a token: "
            "run `gatelock upkeep tokens create NAME --scope read`, or listen on 127.0.0.1"
        )


def _tls_files(settings: Settings) -> TlsFiles | None:
    certificate, key = settings.analyzer.http_cert, settings.analyzer.http_key
    return TlsFiles(Path(certificate), Path(key)) if certificate and key else None
