"""`PUT /v1/gates/{instance}`: status reports of gates, stored in batches some time later."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from http import HTTPStatus
from math import inf
from typing import NamedTuple

from fastapi import FastAPI, Request, Response

from analyzer.faces.api.request_bodies import body_of
from analyzer.faces.authentication import Authenticator, RequestRefused
from analyzer.gates.gate_reports import GATES_PER_TOKEN_MAX, OWNED_S, GateOwner
from analyzer.kernel.errors import AnalyzerError
from analyzer.server.problems import HttpProblem, add_problem_handlers
from analyzer.server.single_flight import SingleFlight, run_in_thread
from gatekeeper.model import GateStatus, SourceError
from gatekeeper.telemetry.status_json import STATUS_BYTES_MAX, load

log = logging.getLogger(__name__)

PENDING_MAX = 5_000  # reports that wait to be stored; a refused gate reports again in a minute
PENDING_BYTES_MAX = 16 << 20  # of these
BATCH_BYTES_MAX = 1 << 20  # in one statement
OWNERS_MAX = 10_000
OWNERS_CACHED_S = 2.0
UNSTORED_S = 10.0  # the longest that a report usually waits to be stored
OWNERS_TIMEOUT_S = 0.5  # a gate waits for an answer for a second
STORE_EVERY_S = 1.0
ROWS_PER_S = 500  # a fleet must not keep the database from storing counts


class Pending(NamedTuple):
    """A report that waits to be stored, its size as it came, and the token it came with."""

    status: GateStatus
    size: int
    token: str


class Ownership(NamedTuple):
    """The token that an instance belongs to, None over SQL, and the uptime of its last report."""

    token: str | None
    last_s: float


class InstanceOwners:
    """The tokens that instances belong to, as the database has them and as later reports show.

    An instance is given up when it has reported nothing for `OWNED_S`, or its token was revoked. All methods
    belong to one event loop.
    """

    def __init__(self, load: Callable[[], Iterable[GateOwner]], uptime_s: Callable[[], float]) -> None:
        """`load` runs in a thread, at most once in `OWNERS_CACHED_S`; it may block and raise."""
        self._loading = SingleFlight(load)
        self._uptime_s = uptime_s
        self._loaded_s = -inf
        self._owners: dict[str, Ownership] = {}
        self._of_token: Counter[str | None] = Counter()  # instances in `_owners`

    async def refresh(self) -> None:
        """Reads the owners unless they were read lately; keeps those known while they cannot be read.

        A report that is accepted meanwhile is compared once more by the statement that stores it.
        """
        now_s = self._uptime_s()
        if now_s - self._loaded_s <= OWNERS_CACHED_S:
            return
        try:
            async with asyncio.timeout(OWNERS_TIMEOUT_S):
                stored = await self._loading.get()
        except (AnalyzerError, TimeoutError):
            self._loaded_s = now_s
            return
        self._loaded_s = now_s
        owners = {instance: Ownership(token, now_s - age_s) for instance, token, age_s in stored}
        for instance, owner in self._owners.items():  # of reports that are not stored yet
            if instance not in owners and now_s - owner.last_s <= UNSTORED_S:
                owners[instance] = owner
        self._owners, self._of_token = owners, Counter(owner.token for owner in owners.values())

    def owns(self, token: str, instance: str) -> bool:
        """Whether `instance` belongs to this token, or to none."""
        owner = self._owners.get(instance)
        return owner is None or owner.token == token or not self._is_living(owner)

    def has_room(self, token: str, instance: str) -> bool:
        """Whether this token may have `instance` among its own."""
        return instance in self._owners or self._of_token[token] < GATES_PER_TOKEN_MAX

    def reported(self, token: str, instance: str) -> None:
        """Gives `instance` to this token, which has just reported it."""
        self._forget(instance)  # the last one to report stands last
        self._owners[instance] = Ownership(token, self._uptime_s())
        self._of_token[token] += 1
        if len(self._owners) > OWNERS_MAX:
            self._forget(next(iter(self._owners)))

    def _forget(self, instance: str) -> None:
        owner = self._owners.pop(instance, None)
        if owner is not None:
            self._of_token[owner.token] -= 1

    def _is_living(self, owner: Ownership) -> bool:
        return self._uptime_s() - owner.last_s <= OWNED_S


class PendingStatuses:
    """The latest report of each gate, until it is stored; all methods belong to one event loop.

    A gate does not wait for the database. Reports that cannot be stored are dropped: each report contains
    everything since the gate began, so no count is lost. Beyond `PENDING_BYTES_MAX` the token with most of
    them loses its longest one: reports of honest gates are short.
    """

    def __init__(
        self,
        store: Callable[[Collection[GateStatus], Mapping[str, str]], None],
        load_owners: Callable[[], Iterable[GateOwner]] = tuple,
        uptime_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store` gets reports, and tokens by instance; it runs in a thread, and may block and raise."""
        self._store = store
        self.owners = InstanceOwners(load_owners, uptime_s)
        self._pending: dict[str, Pending] = {}
        self._bytes: Counter[str] = Counter()  # that wait, by token
        self._storing: asyncio.Task[None] | None = None
        self._has_failed = False

    def add(self, status: GateStatus, size: int = 0, token: str = "") -> bool:
        """Keeps `status` unless a later report of this gate is pending; False if there is no room for it."""
        previous = self._pending.get(status.instance)
        if previous is None and len(self._pending) >= PENDING_MAX:
            return False
        if token:
            self.owners.reported(token, status.instance)
        if previous is None or previous.status.number < status.number:
            self._keep(Pending(status, size, token))
        while self._bytes.total() > PENDING_BYTES_MAX:
            self._drop_longest()
        if self._storing is None or self._storing.done():
            self._storing = asyncio.ensure_future(self._store_pending())
        return status.instance in self._pending

    def _keep(self, pending: Pending) -> None:
        self._remove(pending.status.instance)
        self._pending[pending.status.instance] = pending
        self._bytes[pending.token] += pending.size

    def _remove(self, instance: str) -> None:
        removed = self._pending.pop(instance, None)
        if removed is not None:
            self._bytes[removed.token] -= removed.size
            if self._bytes[removed.token] <= 0:
                del self._bytes[removed.token]

    def _drop_longest(self) -> None:
        most = max(self._bytes, key=self._bytes.__getitem__)
        of_token = (pending for pending in self._pending.values() if pending.token == most)
        self._remove(max(of_token, key=lambda pending: pending.size).status.instance)

    async def _store_pending(self) -> None:
        pause_s = STORE_EVERY_S
        while self._pending:
            await asyncio.sleep(pause_s)
            batch = self._next_batch()
            try:
                tokens = {pending.status.instance: pending.token for pending in batch if pending.token}
                await run_in_thread(partial(self._store, [pending.status for pending in batch], tokens))
                self._has_failed = False
            except AnalyzerError as error:
                if not self._has_failed:  # once for each outage
                    log.warning("cannot store the status reports of gates: %s", error)
                self._has_failed = True
            # The rest follows soon, so that one statement is short and its failure takes few reports along.
            pause_s = max(STORE_EVERY_S if not self._pending else 0.0, len(batch) / ROWS_PER_S)

    def _next_batch(self) -> list[Pending]:
        """Removes and returns the first reports that one statement may hold."""
        batch: list[Pending] = []
        size = 0
        for pending in self._pending.values():
            if batch and size + pending.size > BATCH_BYTES_MAX:
                break
            batch.append(pending)
            size += pending.size
        for pending in batch:
            self._remove(pending.status.instance)
        return batch


COMMANDS = {"list": "GET", "forget": "POST"}  # /v1/gates/list is an endpoint, and its method


def add_gates_endpoint(app: FastAPI, pending: PendingStatuses, authenticator: Authenticator) -> None:
    """Adds the endpoint for status reports to `app`, for tokens with the scope `read`."""
    add_problem_handlers(app)

    @app.put("/v1/gates/{instance}")
    async def gates(instance: str, request: Request) -> Response:
        """204 when the report was accepted: it is stored within seconds, or the gate's next one is."""
        token = await authenticator.require("read", request)
        if instance in COMMANDS:
            detail = f"/v1/gates/{instance} is a command, and no gate."
            raise HttpProblem(HTTPStatus.METHOD_NOT_ALLOWED, detail, {"allow": COMMANDS[instance]})
        body = await body_of(request, STATUS_BYTES_MAX)
        status = _parse(body)
        if status.instance != instance:
            detail = "`instance` in the document must be the one in the URL."
            raise HttpProblem(HTTPStatus.BAD_REQUEST, detail)
        if token and (refused := await _refusal(pending.owners, token, instance)) is not None:
            authenticator.refuse(refused, request)
        if not pending.add(status, len(body), token):
            detail = "Too many gates report their status at the moment."
            raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, {"retry-after": "60"})
        return Response(status_code=HTTPStatus.NO_CONTENT)


async def _refusal(owners: InstanceOwners, token: str, instance: str) -> RequestRefused | None:
    """Returns why a report of `instance` may not come with this token; None if it may."""
    await owners.refresh()
    if not owners.owns(token, instance):
        detail = "This instance reports with another token."
        return RequestRefused("other-token", HTTPStatus.FORBIDDEN, detail)
    if not owners.has_room(token, instance):
        detail = f"{GATES_PER_TOKEN_MAX} gates report with this token, the maximum."
        return RequestRefused("too-many-gates", HTTPStatus.TOO_MANY_REQUESTS, detail, {"retry-after": "60"})
    return None


def _parse(body: bytes) -> GateStatus:
    try:
        return load(body)
    except SourceError as error:
        raise HttpProblem(HTTPStatus.BAD_REQUEST, str(error)) from error
