"""Authentication by bearer tokens; until the first one is made, this machine may read, and nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from ipaddress import ip_address
from math import inf
from typing import Literal, NamedTuple, NoReturn

from fastapi import Request

from analyzer.gates.refused_clients import RefusalCount
from analyzer.kernel.errors import AnalyzerError
from analyzer.kernel.tokens import TokenList, TokenScope
from analyzer.server.connection_limits import Client, client_network
from analyzer.server.problems import HttpProblem
from analyzer.server.single_flight import SingleFlight, run_in_thread
from gatekeeper.telemetry.status_json import INSTANCE

log = logging.getLogger(__name__)

TOKENS_CACHED_S = 2.0  # a revoked token is accepted for up to this long
RETRY_SOON = {"retry-after": "1"}
# Set by proxies, and by browsers for requests that a web page makes.
NOT_DIRECT = ("forwarded", "x-forwarded-for", "x-real-ip", "via", "origin", "sec-fetch-site")
LOG_EVERY_S = 60.0
LISTED_MAX = 3
INSTANCE_FIELD = "gatelock-instance"  # the name of the gate that asks
STORE_EVERY_S = 5.0
CLIENTS_MAX = 100  # counted separately between two writes
CLIENTS_PER_NETWORK_MAX = 10  # of these; gates may share an address, and a client may invent names

Refusal = Literal["no-token", "invalid-token", "scope", "not-local", "other-token", "too-many-gates"]


class RequestRefused(HttpProblem):
    """A request that may not do what it asks for."""

    def __init__(
        self, reason: Refusal, status: HTTPStatus, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, headers)
        self.reason = reason


class RefusalLog:
    """Counts refused requests and logs them, at most once in `LOG_EVERY_S`."""

    def __init__(self, count: Callable[[str], object], uptime_s: Callable[[], float]) -> None:
        """`count` is called with the reason of each."""
        self._count = count
        self._uptime_s = uptime_s
        self._logged_s = -inf
        self._unlogged: Counter[Refusal] = Counter()
        self._hosts: dict[str, None] = {}

    def add(self, refused: RequestRefused, client: Client | None) -> None:
        """Counts one request."""
        self._count(refused.reason)
        self._unlogged[refused.reason] += 1
        if client is not None and len(self._hosts) <= LISTED_MAX:
            self._hosts[client[0]] = None
        if self._uptime_s() - self._logged_s >= LOG_EVERY_S:
            self._logged_s = self._uptime_s()
            hosts = list(self._hosts)
            more = " and others" if len(hosts) > LISTED_MAX else ""
            reasons = ", ".join(f"{reason}: {count}" for reason, count in self._unlogged.items())
            log.warning("requests refused: %s; from %s%s", reasons, ", ".join(hosts[:LISTED_MAX]), more)
            self._unlogged.clear()
            self._hosts.clear()


class Credentials(NamedTuple):
    """The parts of a request that decide what it may do, and who sends it."""

    authorization: str  # the header field, "" if there is none
    is_local: bool  # whether it comes from this machine, under a name of this machine, not through a proxy
    client: Client | None
    instance: str = ""  # the gate, as the request says; "" if it does not

    @classmethod
    def of(cls, request: Request) -> Credentials:
        """Returns the credentials of a request."""
        client = None if request.client is None else (request.client.host, request.client.port)
        instance = request.headers.get(INSTANCE_FIELD, "")
        if INSTANCE.fullmatch(instance) is None:
            instance = ""
        return cls(request.headers.get("authorization", ""), _is_local(request), client, instance)


class RefusedClient(NamedTuple):
    """A client, and why it is refused; "" for the address stands for all clients beyond a bound."""

    address: str
    instance: str
    reason: str


class RefusalRecord(NamedTuple):
    """Refused requests of one client since the last write, and the uptime of the first and the last."""

    requests: int
    first_s: float
    last_s: float


class RefusalRecorder:
    """Stores which clients are refused, at most once in `STORE_EVERY_S`, however many requests they send.

    All methods belong to one event loop. Refusals that cannot be stored wait for the next write.
    """

    def __init__(
        self, store: Callable[[Sequence[RefusalCount]], None], uptime_s: Callable[[], float]
    ) -> None:
        """`store` runs in a thread; it may block and raise AnalyzerError."""
        self._store = store
        self._uptime_s = uptime_s
        self._records: dict[RefusedClient, RefusalRecord] = {}
        self._of_network: Counter[str] = Counter()  # clients in `_records`
        self._storing: asyncio.Task[None] | None = None

    def add(self, reason: str, credentials: Credentials) -> None:
        """Counts one refused request."""
        now_s = self._uptime_s()
        address = credentials.client[0] if credentials.client is not None else ""
        client = RefusedClient(address, credentials.instance if address else "", reason)
        self._count(client, RefusalRecord(1, now_s, now_s))
        if self._storing is None or self._storing.done():
            self._storing = asyncio.ensure_future(self._store_records())

    def _count(self, client: RefusedClient, record: RefusalRecord) -> None:
        previous = self._records.get(client)
        if previous is None:
            network = client_network(client.address)
            if client.address and (
                len(self._records) >= CLIENTS_MAX or self._of_network[network] >= CLIENTS_PER_NETWORK_MAX
            ):
                self._count(RefusedClient("", "", client.reason), record)
                return
            self._of_network[network] += 1
        else:
            first_s, last_s = min(previous.first_s, record.first_s), max(previous.last_s, record.last_s)
            record = RefusalRecord(previous.requests + record.requests, first_s, last_s)
        self._records[client] = record

    async def _store_records(self) -> None:
        while self._records:
            await asyncio.sleep(STORE_EVERY_S)
            records, now_s = self._records, self._uptime_s()
            self._records, self._of_network = {}, Counter()
            counts = [
                RefusalCount(
                    *client,
                    requests=record.requests,
                    first_age_ms=round((now_s - record.first_s) * 1000),
                    last_age_ms=round((now_s - record.last_s) * 1000),
                )
                for client, record in records.items()
            ]
            try:
                await run_in_thread(partial(self._store, counts))
            except AnalyzerError as error:
                log.info("refused requests cannot be stored, and are kept for the next time: %s", error)
                for client, record in records.items():
                    self._count(client, record)


class Authenticator:
    """Compares the token of a request with the tokens in the database.

    Until one is made, only requests from this machine are served, and those that read alone: under a name of
    this machine and not through a proxy. Behind a proxy every request comes from this machine, and a web page
    elsewhere may make a browser on this machine ask under another name (DNS rebinding).
    """

    def __init__(
        self,
        load_tokens: Callable[[], TokenList],
        uptime_s: Callable[[], float],
        on_admitted: Callable[[Client | None], object] = lambda _client: None,
        on_refused: Callable[[RequestRefused, Credentials], object] = lambda _refused, _credentials: None,
    ) -> None:
        """`load_tokens` may block; it runs in a thread, at most once in `TOKENS_CACHED_S`. `on_admitted` gets
        the client of each request that is admitted, `on_refused` the credentials of each one that `require`
        refuses."""
        # The time is taken before the tokens are read: what is revoked meanwhile counts as not seen yet.
        self._loading = SingleFlight(lambda: (uptime_s(), load_tokens()))
        self._uptime_s = uptime_s
        self._on_admitted = on_admitted
        self._on_refused = on_refused
        self._loaded_s, self._cached = -inf, TokenList((), 0)

    async def require(self, scope: TokenScope, request: Request, *, acts: bool = False) -> str:
        """Returns the name of the token, "" without one. Raises HttpProblem unless `request` may do what
        `scope` allows. A request that `acts` needs a token in any case."""
        credentials = Credentials.of(request)
        try:
            return await self.check(scope, credentials, acts=acts)
        except RequestRefused as refused:
            self._on_refused(refused, credentials)
            raise

    def refuse(self, refused: RequestRefused, request: Request) -> NoReturn:
        """Counts a request that an endpoint refuses by itself, and raises `refused`."""
        self._on_refused(refused, Credentials.of(request))
        raise refused

    async def allows(self, scope: TokenScope, request: Request) -> bool:
        """Whether `request` may do what `scope` allows, by the last known tokens if they cannot be read."""
        try:
            tokens = await self.known_tokens()
        except HttpProblem:
            if self._loaded_s == -inf:
                return False
            tokens = self._cached
        try:
            self._check(tokens, scope, Credentials.of(request))
        except RequestRefused:
            return False
        return True

    async def check(self, scope: TokenScope, credentials: Credentials, *, acts: bool = False) -> str:
        """Returns the name of the token, "" without one. Raises HttpProblem unless a request with these
        credentials may do what `scope` allows; without any token, one that `acts` may not."""
        name = self._check(await self.known_tokens(), scope, credentials, acts=acts)
        self._on_admitted(credentials.client)
        return name

    def _check(
        self, tokens: TokenList, scope: TokenScope, credentials: Credentials, *, acts: bool = False
    ) -> str:
        if tokens.is_open:
            if not credentials.is_local:
                raise RequestRefused(
                    "not-local",
                    HTTPStatus.FORBIDDEN,
                    "While no token exists, only direct requests from this machine are answered: "
                    "run `gatelock upkeep tokens create NAME --scope read`.",
                )
            if acts:
                raise _unauthorized(acts_need_a_token(scope), "")
            return ""
        kind, _, credential = credentials.authorization.partition(" ")
        if kind.lower() != "bearer":
            detail = (
                "Send a token, `Authorization: Bearer ...`, made by "
                "`gatelock upkeep tokens create NAME --scope read`."
            )
            raise _unauthorized(detail, "")
        token = tokens.bearer(credential.strip())
        if token is None:
            raise _unauthorized("This token was never made, was revoked, or has expired.", "invalid_token")
        if not token.allows(scope):
            raise RequestRefused(
                "scope",
                HTTPStatus.FORBIDDEN,
                f"The token {token.name} has the scope {token.scope}; this request needs {scope}.",
                {"www-authenticate": f'Bearer error="insufficient_scope", scope="{scope}"'},
            )
        return token.name

    async def known_tokens(self) -> TokenList:
        """Returns the tokens, at most `TOKENS_CACHED_S` old. Raises HttpProblem if they cannot be read."""
        if self._uptime_s() - self._loaded_s > TOKENS_CACHED_S:
            try:
                self._loaded_s, self._cached = await self._loading.get()
            except (AnalyzerError, TimeoutError) as error:
                detail = "The tokens cannot be read at the moment."
                raise HttpProblem(HTTPStatus.SERVICE_UNAVAILABLE, detail, RETRY_SOON) from error
        return self._cached


def acts_need_a_token(scope: TokenScope) -> str:
    """Returns why a request that acts is refused while no token exists, and the command that makes one."""
    return (
        "Without a token this machine may read, and nothing else. "
        f"Make one: `gatelock upkeep tokens create NAME --scope {scope}`."
    )


def _unauthorized(detail: str, error: str) -> RequestRefused:
    challenge = f'Bearer error="{error}"' if error else "Bearer"
    reason: Refusal = "invalid-token" if error else "no-token"
    return RequestRefused(reason, HTTPStatus.UNAUTHORIZED, detail, {"www-authenticate": challenge})


def _is_local(request: Request) -> bool:
    if request.client is None or any(name in request.headers for name in NOT_DIRECT):
        return False
    return is_loopback(request.client.host) and is_loopback(request.url.hostname or "")


@lru_cache(maxsize=1_000)
def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address, can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return False
    return address.is_loopback
