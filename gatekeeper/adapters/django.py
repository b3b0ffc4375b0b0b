"""Guards a Django project: a middleware, sync and async, with settings, a system check and decorators.

INSTALLED_APPS = [..., "gatekeeper.adapters.django.Gatelock"]     # for the system check
MIDDLEWARE = [..., "gatekeeper.adapters.django.GuardMiddleware"]
GATELOCK = {"gate": "postgresql+psycopg://gate@db/gatelock", "limiters": [SlidingLog(20, 1)]}
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

try:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django.apps import AppConfig
    from django.conf import settings
    from django.core import checks
    from django.core.exceptions import ImproperlyConfigured
    from django.core.signals import setting_changed
    from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseServerError
    from django.urls import Resolver404, ResolverMatch, resolve
    from django.utils.module_loading import import_string
except ImportError as missing:
    raise ImportError("gatekeeper.adapters.django needs Django: install gatelock[django]") from missing

from gatekeeper.adapters.admission_control import (
    NOTES_ENVIRON_KEY,
    NOTES_STATE_KEY,
    AdmissionController,
    CheckResult,
    DecisionNotes,
    GuardLimiter,
    RequestIdentity,
    make_exemption,
    require_store_client,
)
from gatekeeper.adapters.caller_extraction import (
    CallerKind,
    TrustedProxies,
    caller_name,
    name_from_header,
    require_kind,
)
from gatekeeper.adapters.refusal_response import HeaderStyle, limit_headers, refusal, require_style
from gatekeeper.adapters.route_patterns import pattern_of_django
from gatekeeper.gate import Gate

ViewFunction = TypeVar("ViewFunction", bound=Callable[..., Any])
Extractor = Callable[[HttpRequest], Any]  # gives a name; in an async stack also something to await

MIDDLEWARE = "gatekeeper.adapters.django.GuardMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
COST, EXEMPT = "gatelock_cost", "gatelock_exempt"


def cost(permits: int | Callable[[HttpRequest], int]) -> Callable[[ViewFunction], ViewFunction]:
    """A view whose requests count as so many, or as many as a function of the request says."""

    def costing(view: ViewFunction) -> ViewFunction:
        setattr(view, COST, permits)
        return view

    return costing


def exempt(view: ViewFunction) -> ViewFunction:
    """A view that is let through unasked."""
    setattr(view, EXEMPT, True)
    return view


def header(name: str, kind: CallerKind = "api_key") -> Extractor:
    """The caller by a request header, as a name of this kind. Raises ValueError for an unknown kind."""
    require_kind(kind)
    return lambda request: _name(kind, request, name)


def api_key(request: HttpRequest) -> str:
    """The caller by the header X-API-Key."""
    return _name("api_key", request, "x-api-key")


def _name(kind: str, request: HttpRequest, header: str) -> str:
    return name_from_header(kind, request.headers.get(header, "").encode("latin-1", "replace"))


def user(request: HttpRequest) -> str:
    """The caller by the authenticated user's name; put the middleware behind AuthenticationMiddleware.
    In an async stack the user is awaited, as `request.auser` gives it."""
    return _name_of(getattr(request, "user", None))


async def _user_async(request: HttpRequest) -> str:
    auser = getattr(request, "auser", None)
    return "" if auser is None else _name_of(await auser())


def _name_of(someone: Any) -> str:
    return (
        caller_name("user", someone.get_username())
        if someone is not None and someone.is_authenticated
        else ""
    )


def address(trusted_proxies: Iterable[str] = (), prefix6: int = 128) -> Extractor:
    """The caller as `address:...`, as `gatekeeper.adapters.wsgi.address` has it."""
    proxies = TrustedProxies(trusted_proxies)
    return lambda request: caller_name("address", _client(request, proxies), prefix6)


def _client(request: HttpRequest, proxies: TrustedProxies) -> str:
    forwarded = request.headers.get("x-forwarded-for")
    return proxies.client(request.META.get("REMOTE_ADDR", ""), [forwarded] if forwarded else [])


class Setting(NamedTuple):
    """GATELOCK of the project's settings. What is a function there may be given by its dotted path."""

    gate: Gate
    limiters: tuple[GuardLimiter, ...] = ()
    caller: Extractor = api_key
    tenant: Extractor | None = None
    trusted_proxies: Iterable[str] = ()
    exempt: Iterable[str] | Callable[[HttpRequest], bool] = ()
    shadow: bool = False
    headers: HeaderStyle = "draft"
    refund_when: Callable[[HttpResponseBase], bool] | None = None


FUNCTIONS = ("caller", "tenant", "refund_when")


def setting_of(given: Any) -> Setting:
    """GATELOCK as it is meant. Raises ValueError, TypeError and ImportError, with what is wrong in it."""
    if not isinstance(given, dict) or "gate" not in given:
        raise ValueError('GATELOCK: expected {"gate": Gate(...) or its URL, ...}')
    if unknown := given.keys() - set(Setting._fields):
        raise ValueError(
            f"GATELOCK knows no {', '.join(sorted(unknown))}; it has {', '.join(Setting._fields)}"
        )
    said = {
        name: import_string(value) if name in FUNCTIONS and isinstance(value, str) else value
        for name, value in given.items()
    }
    if isinstance(said["gate"], str):
        said["gate"] = Gate(said["gate"])
    said["limiters"] = tuple(said.get("limiters", ()))
    found = Setting(**said)
    _require(found)
    return found


def _require(found: Setting) -> None:
    if not isinstance(found.gate, Gate):
        raise TypeError(f"GATELOCK: gate: expected Gate(...) or its URL, got {found.gate!r:.80}")
    for limiter in found.limiters:
        if not callable(getattr(limiter, "check", None)):
            raise TypeError(f"GATELOCK: limiters: expected limiters, got {limiter!r:.80}")
    for name in FUNCTIONS:
        value = getattr(found, name)
        if value is not None and not callable(value):
            raise TypeError(f"GATELOCK: {name}: expected a function or its dotted path, got {value!r:.80}")
    make_exemption(found.exempt, _path_of)
    require_style(found.headers)
    TrustedProxies(found.trusted_proxies)


class Gatelock(AppConfig):  # type: ignore[misc]  # Django has no types
    """For INSTALLED_APPS: makes `manage.py check` look at GATELOCK."""

    name = "gatekeeper.adapters.django"
    label = "gatelock"
    verbose_name = "Gatelock"


@checks.register("security")  # type: ignore[untyped-decorator]  # Django has no types
def check_setting(app_configs: object, **_more: object) -> list[checks.CheckMessage]:
    """For `manage.py check`: what is wrong with GATELOCK, and with where the middleware stands."""
    given: Any = getattr(settings, "GATELOCK", None)
    middleware = list(settings.MIDDLEWARE)
    try:
        found = setting_of(given)
    except (ValueError, TypeError, ImportError) as wrong:
        return [checks.Error(str(wrong), id="gatelock.E001")]
    if isinstance(given["gate"], str):
        found.gate.close()
    if MIDDLEWARE not in middleware:
        hint = f"Add {MIDDLEWARE!r} to MIDDLEWARE."
        return [
            checks.Warning("GATELOCK is set, and nothing is guarded by it.", hint=hint, id="gatelock.W001")
        ]
    if found.caller is user and AUTHENTICATION not in middleware[: middleware.index(MIDDLEWARE)]:
        message = "GATELOCK: the caller is the user, whom nobody has authenticated yet."
        hint = f"Put {MIDDLEWARE!r} behind {AUTHENTICATION!r} in MIDDLEWARE."
        return [checks.Error(message, hint=hint, id="gatelock.E002")]
    return []


class GuardMiddleware:
    """Refuses requests that the gate, or one of the limiters, does not let pass. The decision stands in
    `request.gatelock`; the resource is the URL pattern that the path matches, as in /v1/items/{id}.

    Raises ImproperlyConfigured for settings that cannot be.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        self._is_old = False
        self._load()
        setting_changed.connect(self._changed)

    def _changed(self, *, setting: str, **_more: object) -> None:
        self._is_old = self._is_old or setting == "GATELOCK"  # the next request looks: tests set several

    def _load(self) -> None:
        try:
            self._set = found = setting_of(getattr(settings, "GATELOCK", None))
            require_store_client(found.limiters, awaited=self._is_async)
        except (ValueError, TypeError, ImportError) as wrong:
            raise ImproperlyConfigured(str(wrong)) from wrong
        self._is_old = False
        self._checkpoint = AdmissionController(found.gate, found.limiters, shadow=found.shadow)
        self._proxies = TrustedProxies(found.trusted_proxies)
        self._exempt = make_exemption(found.exempt, _path_of)
        self._caller: Extractor = _user_async if self._is_async and found.caller is user else found.caller
        for name, read in (("caller", self._caller), ("tenant", found.tenant)):
            if iscoroutinefunction(read) and not self._is_async:
                raise ImproperlyConfigured(f"GATELOCK: {name}: a coroutine, and nobody here can await it")

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_old:
            self._load()
        if self._is_async:
            return self._call_async(request)
        match = _match(request)
        if self._passes(request, match):
            return self._get_response(request)
        tenant = "" if self._set.tenant is None else self._set.tenant(request)
        verdict = self._checkpoint.ask(self._who(request, match, self._caller(request), tenant))
        if not verdict.decision.allowed:
            return self._refused(verdict)
        request.gatelock = verdict.decision  # for the views
        try:
            response = self._told(verdict, self._get_response(request))
            if self._is_given_back(verdict, response):
                self._checkpoint.refund(verdict)
        except Exception:  # which Django makes a response of, unless it debugs
            if self._is_given_back(verdict, HttpResponseServerError()):
                self._checkpoint.refund(verdict)
            self._checkpoint.leave(verdict)
            raise
        if self._checkpoint.holds and response.streaming:
            _at_end(response, functools.partial(self._checkpoint.leave, verdict))
        else:
            self._checkpoint.leave(verdict)
        return response

    async def _call_async(self, request: HttpRequest) -> HttpResponseBase:
        match = _match(request)
        if self._passes(request, match):
            passed: HttpResponseBase = await self._get_response(request)
            return passed
        caller = await _awaited(self._caller(request))
        tenant = "" if self._set.tenant is None else await _awaited(self._set.tenant(request))
        verdict = await self._checkpoint.ask_async(self._who(request, match, caller, tenant))
        if not verdict.decision.allowed:
            return self._refused(verdict)
        request.gatelock = verdict.decision  # for the views
        try:
            response = self._told(verdict, await self._get_response(request))
            if self._is_given_back(verdict, response):
                await self._checkpoint.refund_async(verdict)
        except BaseException as error:  # cancelled, too: who asked has gone away
            if isinstance(error, Exception) and self._is_given_back(verdict, HttpResponseServerError()):
                await self._checkpoint.refund_async(verdict)
            await self._checkpoint.leave_async(verdict)
            raise
        if self._checkpoint.holds and response.streaming:
            loop = asyncio.get_running_loop()
            _at_end(response, functools.partial(_leave_soon, self._checkpoint, verdict, loop))
        else:
            await self._checkpoint.leave_async(verdict)
        return response

    def _passes(self, request: HttpRequest, match: ResolverMatch | None) -> bool:
        return getattr(match and match.func, EXEMPT, False) or self._exempt(request)

    def _who(
        self, request: HttpRequest, match: ResolverMatch | None, caller: str, tenant: str
    ) -> RequestIdentity:
        permits = getattr(match and match.func, COST, 1)
        return RequestIdentity(
            caller=caller,
            address=_client(request, self._proxies),
            resource="" if match is None or match.route is None else pattern_of_django(match.route),
            tenant=tenant,
            cost=permits(request) if callable(permits) else permits,
            method=request.method or "",
            note=_note(request),
        )

    def _refused(self, verdict: CheckResult) -> HttpResponse:
        answer = refusal(verdict.decision, self._set.headers)
        return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))

    def _told(self, verdict: CheckResult, response: HttpResponseBase) -> HttpResponseBase:
        for name, value in limit_headers(verdict.decision, self._set.headers, verdict.limiter):
            response.headers[name] = value
        return response

    def _is_given_back(self, verdict: CheckResult, response: HttpResponseBase) -> bool:
        wanted = self._set.refund_when
        return wanted is not None and bool(verdict.spent) and wanted(response)


def _note(request: HttpRequest) -> DecisionNotes | None:
    """Of the request log around Django, if there is one."""
    scope = getattr(request, "scope", None)
    note: DecisionNotes | None = (
        request.META.get(NOTES_ENVIRON_KEY) if scope is None else scope.get("state", {}).get(NOTES_STATE_KEY)
    )
    return note


def _path_of(request: HttpRequest) -> str:
    path: str = request.path_info
    return path


def _match(request: HttpRequest) -> ResolverMatch | None:
    """The view that will answer: middlewares come before Django looks for it, and refusing must, too."""
    try:
        return resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return None


async def _awaited(name: Any) -> str:
    found: str = await name if hasattr(name, "__await__") else name
    return found


def _at_end(response: HttpResponseBase, leave: Callable[[], object]) -> None:
    """Call `leave` once: when the server closes `response`, or when a middleware has dropped it."""
    ending = weakref.finalize(response, leave)
    ending.atexit = False
    response._resource_closers.append(ending)  # where Django puts what it closes itself


def _leave_soon(
    checkpoint: AdmissionController, verdict: CheckResult, loop: asyncio.AbstractEventLoop
) -> None:
    """Responses are closed in a thread, and a store may have to be awaited."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(checkpoint.leave_async(verdict), loop)
