"""Guard for Django projects: a middleware, sync and async, with settings, a system check and decorators.

INSTALLED_APPS = [..., "gatekeeper.adapters.django.Gatelock"]  # for the system check
MIDDLEWARE = [..., "gatekeeper.adapters.django.GuardMiddleware"]
GATELOCK = {"gate": "postgresql+psycopg://gate@db/gatelock", "limiters": [SlidingLog(20, 1)]}
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
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
    raise ImportError("gatekeeper.adapters.django needs Django: pip install 'gatelock[django]'") from missing

from gatekeeper.adapters.admission_control import (
    NOTES_ENVIRON_KEY,
    NOTES_STATE_KEY,
    AdmissionController,
    CheckResult,
    DecisionNotes,
    GuardLimiter,
    PerAddress,
    RequestIdentity,
    is_limiter,
    make_exemption,
    read_values,
    require_values,
)
from gatekeeper.adapters.caller_extraction import (
    CallerKind,
    caller_name,
    name_from_header,
    require_kind,
    text_from_header,
)
from gatekeeper.adapters.refusal_response import VERDICT, HeaderStyle, require_style
from gatekeeper.adapters.route_patterns import OTHER, pattern_of_django
from gatekeeper.gate import Gate
from gatekeeper.identity import PREFIX6, NameDigest, TrustedProxies

__all__ = [
    "Gatelock",
    "GuardMiddleware",
    "PerAddress",
    "address",
    "api_key",
    "cost",
    "exempt",
    "header",
    "header_text",
    "user",
]

ViewFunction = TypeVar("ViewFunction", bound=Callable[..., Any])
Extractor = Callable[[HttpRequest], Any]  # returns a name; in an async stack also an awaitable of one

MIDDLEWARE = "gatekeeper.adapters.django.GuardMiddleware"
AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"
COST, EXEMPT = "gatelock_cost", "gatelock_exempt"


def cost(permits: int | Callable[[HttpRequest], int]) -> Callable[[ViewFunction], ViewFunction]:
    """Returns a decorator of a view whose requests take more than one permit of limiters.

    Args:
        permits: The number of permits, or a function that returns it from the request.

    >>> @cost(10)
    ... def export(request): ...
    """

    def decorate(view: ViewFunction) -> ViewFunction:
        setattr(view, COST, permits)
        return view

    return decorate


def exempt(view: ViewFunction) -> ViewFunction:
    """Decorates a view whose requests pass without a check.

    Args:
        view: The view, sync or async.

    >>> @exempt
    ... def healthz(request): ...
    """
    setattr(view, EXEMPT, True)
    return view


def header(name: str, kind: CallerKind = "api_key", digest: NameDigest | None = None) -> Extractor:
    """Returns an extractor of the caller from a request header: `api_key:...` by default.

    The value is read as UTF-8, as proxies log it; Django reads latin-1. A value that cannot be a caller's
    name counts as absent.

    Args:
        name: Name of the header, in any case.
        kind: Kind of the caller's name: "api_key", "user" or "address".
        digest: Digest of the name, so that keys are stored nowhere; the log has to count by the same one.
            None: the name itself.

    Raises:
        ValueError: `kind` is unknown, or an address has a digest.

    >>> from types import SimpleNamespace
    >>> header("x-user", kind="user")(SimpleNamespace(headers={"x-user": "ann"}))
    'user:ann'
    """
    require_kind(kind, digest)
    return lambda request: _name_from_header(kind, request, name, digest)


def header_text(name: str) -> Callable[[HttpRequest], str]:
    """Returns an extractor of the text of a request header, for `values` of GATELOCK.

    The value is read as UTF-8; one that the log does not count by name (too long, with control characters)
    counts as absent.

    Args:
        name: Name of the header, in any case.

    >>> from types import SimpleNamespace
    >>> header_text("x-model")(SimpleNamespace(headers={"x-model": "large"}))
    'large'
    """
    return lambda request: text_from_header(request.headers.get(name, "").encode("latin-1", "replace"))


def api_key(request: HttpRequest) -> str:
    """Returns the caller by the header X-API-Key; "" without one.

    Args:
        request: The request.

    >>> from types import SimpleNamespace
    >>> api_key(SimpleNamespace(headers={"x-api-key": "acme"}))
    'api_key:acme'
    """
    return _name_from_header("api_key", request, "x-api-key")


def _name_from_header(kind: str, request: HttpRequest, header: str, digest: NameDigest | None = None) -> str:
    return name_from_header(kind, request.headers.get(header, "").encode("latin-1", "replace"), digest)


def user(request: HttpRequest) -> str:
    """Returns the caller `user:...` by the authenticated user's name; "" without one.

    Put the middleware after AuthenticationMiddleware. In an async stack the middleware awaits
    `request.auser()`.

    Args:
        request: The request.

    >>> from types import SimpleNamespace
    >>> ann = SimpleNamespace(is_authenticated=True, get_username=lambda: "ann")
    >>> user(SimpleNamespace(user=ann))
    'user:ann'
    """
    return _user_name(getattr(request, "user", None))


async def _user_async(request: HttpRequest) -> str:
    auser = getattr(request, "auser", None)
    return "" if auser is None else _user_name(await auser())


def _user_name(user: Any) -> str:
    return caller_name("user", user.get_username()) if user is not None and user.is_authenticated else ""


def address(trusted_proxies: Iterable[str] = (), prefix6: int = PREFIX6) -> Extractor:
    """Returns an extractor of the caller `address:...` from the client's address.

    Args:
        trusted_proxies: Addresses and networks of proxies whose X-Forwarded-For is trusted, read from right
            to left; "unix" for a proxy that connects through a Unix socket.
        prefix6: Bits of an IPv6 address that count; must equal `prefix6` in the log's mapping.

    >>> from types import SimpleNamespace
    >>> address()(SimpleNamespace(META={"REMOTE_ADDR": "2001:db8::7"}, headers={}))
    'address:2001:db8::/64'
    """
    proxies = TrustedProxies(trusted_proxies)
    return lambda request: caller_name("address", _client(request, proxies), prefix6)


def _client(request: HttpRequest, proxies: TrustedProxies) -> str:
    forwarded = request.headers.get("x-forwarded-for")
    return proxies.client(request.META.get("REMOTE_ADDR", ""), [forwarded] if forwarded else [])


class Setting(NamedTuple):
    """GATELOCK of the project's settings. A function may be given by its dotted path.

    Functions take Django's request. In an async stack `caller` and `tenant` may be coroutine functions.

    Args:
        gate: The gate, or its URL.
        limiters: Limiters that are checked after the gate, by caller, or by address if there is no caller
            (IPv6 by its /64), and a `PerAddress(limiter)` always by address. A store needs an asyncio client
            in an async stack, otherwise one that blocks.
        caller: Returns the caller's typed name, or "".
        tenant: Returns the tenant, if policies count by tenant.
        values: Returns each named value of the request, by its name, if policies count by one; the gate has
            to take it, `Gate(..., values=["model"])`. `header_text` reads one from a header.
        trusted_proxies: Addresses and networks of proxies whose X-Forwarded-For is trusted; "unix" for a
            proxy that connects through a Unix socket.
        other: Resource of requests that match no route; the `else` of the log's mapping.
        exempt: Paths that pass without a check, exact, or all below one that ends in `/*`; or a function that
            returns whether a request is exempt.
        shadow: Whether to deny no request; those that would have been denied are logged.
        headers: Headers about limits in responses: "draft" (`RateLimit`), "legacy" (`X-RateLimit-...`),
            "both" or "off".
        refund_when: Returns whether limiters get the cost back, by the response.
    """

    gate: Gate
    limiters: tuple[GuardLimiter | PerAddress, ...] = ()
    caller: Extractor = api_key
    tenant: Extractor | None = None
    trusted_proxies: Iterable[str] = ()
    other: str = OTHER
    exempt: Iterable[str] | Callable[[HttpRequest], bool] = ()
    shadow: bool = False
    headers: HeaderStyle = "draft"
    refund_when: Callable[[HttpResponseBase], bool] | None = None
    values: Mapping[str, Callable[[HttpRequest], str]] = MappingProxyType({})


FUNCTIONS = ("caller", "tenant", "refund_when")


def parse_setting(value: Any) -> Setting:
    """Returns GATELOCK with its functions imported and its gate made.

    Raises:
        ValueError: A key is missing or unknown, or a value is invalid.
        TypeError: A value has the wrong type.
        ImportError: A dotted path does not exist, or a package is missing.
    """
    if not isinstance(value, dict) or "gate" not in value:
        raise ValueError('GATELOCK: expected {"gate": Gate(...) or its URL, ...}')
    if unknown := value.keys() - set(Setting._fields):
        raise ValueError(
            f"GATELOCK: unknown {', '.join(sorted(unknown))}; the keys are {', '.join(Setting._fields)}"
        )
    fields = {
        name: import_string(field) if name in FUNCTIONS and isinstance(field, str) else field
        for name, field in value.items()
    }
    fields["values"] = {
        name: import_string(field) if isinstance(field, str) else field
        for name, field in dict(fields.get("values", {})).items()
    }
    if isinstance(fields["gate"], str):
        fields["gate"] = Gate(fields["gate"], values=fields["values"])
    fields["limiters"] = tuple(fields.get("limiters", ()))
    setting = Setting(**fields)
    _validate(setting)
    return setting


def _validate(setting: Setting) -> None:
    if not isinstance(setting.gate, Gate):
        raise TypeError(f"GATELOCK: gate: expected Gate(...) or its URL, got {setting.gate!r:.80}")
    for limiter in setting.limiters:
        if not is_limiter(limiter):
            raise TypeError(f"GATELOCK: limiters: expected limiters, got {limiter!r:.80}")
    for name in FUNCTIONS:
        value = getattr(setting, name)
        if value is not None and not callable(value):
            raise TypeError(f"GATELOCK: {name}: expected a function or its dotted path, got {value!r:.80}")
    for name, extractor in setting.values.items():
        if not callable(extractor):
            raise TypeError(f"GATELOCK: values: {name}: expected a function, got {extractor!r:.80}")
    require_values(setting.gate, setting.values)
    if not isinstance(setting.other, str):
        raise TypeError(f"GATELOCK: other: expected a resource, got {setting.other!r:.80}")
    make_exemption(setting.exempt, _request_path)
    require_style(setting.headers)
    TrustedProxies(setting.trusted_proxies)


class Gatelock(AppConfig):  # type: ignore[misc]  # Django has no types
    """Django application for INSTALLED_APPS: registers the system check of GATELOCK.

    Args:
        app_name: Its module; Django passes it.
        app_module: The imported module; Django passes it.

    Example:
        >>> INSTALLED_APPS = ["gatekeeper.adapters.django.Gatelock"]
    """

    name = "gatekeeper.adapters.django"
    label = "gatelock"
    verbose_name = "Gatelock"


@checks.register("security")  # type: ignore[untyped-decorator]  # Django has no types
def check_setting(app_configs: object, **_options: object) -> list[checks.CheckMessage]:
    """Returns errors in GATELOCK and in the middleware's position, for `manage.py check`."""
    value: Any = getattr(settings, "GATELOCK", None)
    middleware = list(settings.MIDDLEWARE)
    try:
        setting = parse_setting(value)
    except (ValueError, TypeError, ImportError) as error:
        return [checks.Error(str(error), id="gatelock.E001")]
    if isinstance(value["gate"], str):
        setting.gate.close()
    if MIDDLEWARE not in middleware:
        hint = f"Add {MIDDLEWARE!r} to MIDDLEWARE."
        return [checks.Warning("GATELOCK is set, but no middleware uses it.", hint=hint, id="gatelock.W001")]
    if setting.caller is user and AUTHENTICATION not in middleware[: middleware.index(MIDDLEWARE)]:
        message = "GATELOCK: caller is the user, who is not authenticated before GuardMiddleware runs."
        hint = f"Put {MIDDLEWARE!r} after {AUTHENTICATION!r} in MIDDLEWARE."
        return [checks.Error(message, hint=hint, id="gatelock.E002")]
    return []


class GuardMiddleware:
    """Django middleware that denies requests that the gate or a limiter does not admit.

    Configured by the setting GATELOCK; `Setting` lists its keys. Views find the decision in
    `request.gatelock`: the one with least remaining. The resource is the URL pattern that the path matches,
    such as /v1/items/{id}.

    Args:
        get_response: The next middleware or the view; Django passes it.

    Raises:
        ImproperlyConfigured: GATELOCK is invalid.

    Example:
        >>> from django.http import HttpResponse
        >>> from django.test import Client, override_settings
        >>> from django.urls import path
        >>> from gatekeeper import Gate, SlidingLog
        >>> from gatekeeper.sources.fixed import FixedSource
        >>> with override_settings(
        ...     GATELOCK={"gate": Gate(FixedSource()), "limiters": [SlidingLog(limit=1, period=60)]},
        ...     MIDDLEWARE=["gatekeeper.adapters.django.GuardMiddleware"],
        ...     ROOT_URLCONF=(path("items", lambda request: HttpResponse("hello")),),
        ... ):
        ...     [Client().get("/items", headers={"x-api-key": "acme"}).status_code for _ in range(2)]
        [200, 429]
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        self._is_outdated = False
        self._load()
        setting_changed.connect(self._on_setting_changed)

    def _on_setting_changed(self, *, setting: str, **_options: object) -> None:
        # The next request loads: tests change several settings, one after the other.
        self._is_outdated = self._is_outdated or setting == "GATELOCK"

    def _load(self) -> None:
        try:
            self._setting = setting = parse_setting(getattr(settings, "GATELOCK", None))
            self._admission = AdmissionController(
                setting.gate,
                setting.limiters,
                values=setting.values,
                awaited=self._is_async,
                shadow=setting.shadow,
                headers=setting.headers,
            )
        except (ValueError, TypeError, ImportError) as error:
            raise ImproperlyConfigured(str(error)) from error
        self._is_outdated = False
        self._proxies = TrustedProxies(setting.trusted_proxies)
        self._is_exempt = make_exemption(setting.exempt, _request_path)
        self._caller: Extractor = _user_async if self._is_async and setting.caller is user else setting.caller
        for name, extractor in (("caller", self._caller), ("tenant", setting.tenant)):
            if iscoroutinefunction(extractor) and not self._is_async:
                raise ImproperlyConfigured(
                    f"GATELOCK: {name}: expected a function that is not async, as this stack is sync"
                )

    def __call__(self, request: HttpRequest) -> Any:
        if self._is_outdated:
            self._load()
        if self._is_async:
            return self._call_async(request)
        match = _match(request)
        if self._passes(request, match):
            return _without_verdict(self._get_response(request))
        tenant = "" if self._setting.tenant is None else self._setting.tenant(request)
        result = self._admission.check(self._identity(request, match, self._caller(request), tenant))
        if not result.decision.allowed:
            return self._refusal(result)
        request.gatelock = result.decision  # for the views
        try:
            response = self._with_headers(result, self._get_response(request))
            if self._is_refunded(result, response):
                self._admission.refund(result)
        except Exception:  # Django turns it into a response, unless DEBUG_PROPAGATE_EXCEPTIONS is set
            if self._is_refunded(result, HttpResponseServerError()):
                self._admission.refund(result)
            self._admission.leave(result)
            raise
        if self._admission.holds_permits and response.streaming:
            _call_at_end(response, functools.partial(self._admission.leave, result))
        else:
            self._admission.leave(result)
        return response

    async def _call_async(self, request: HttpRequest) -> HttpResponseBase:
        match = _match(request)
        if self._passes(request, match):
            passed: HttpResponseBase = await self._get_response(request)
            return _without_verdict(passed)
        caller = await _await_name(self._caller(request))
        tenant = "" if self._setting.tenant is None else await _await_name(self._setting.tenant(request))
        result = await self._admission.check_async(self._identity(request, match, caller, tenant))
        if not result.decision.allowed:
            return self._refusal(result)
        request.gatelock = result.decision  # for the views
        try:
            response = self._with_headers(result, await self._get_response(request))
            if self._is_refunded(result, response):
                await self._admission.refund_async(result)
        except BaseException as error:  # also CancelledError: the client disconnected
            if isinstance(error, Exception) and self._is_refunded(result, HttpResponseServerError()):
                await self._admission.refund_async(result)
            await self._admission.leave_async(result)
            raise
        if self._admission.holds_permits and response.streaming:
            loop = asyncio.get_running_loop()
            _call_at_end(response, functools.partial(_leave_in_loop, self._admission, result, loop))
        else:
            await self._admission.leave_async(result)
        return response

    def _passes(self, request: HttpRequest, match: ResolverMatch | None) -> bool:
        return getattr(match and match.func, EXEMPT, False) or self._is_exempt(request)

    def _identity(
        self, request: HttpRequest, match: ResolverMatch | None, caller: str, tenant: str
    ) -> RequestIdentity:
        permits = getattr(match and match.func, COST, 1)
        return RequestIdentity(
            caller=caller,
            address=_client(request, self._proxies),
            resource=_route_pattern(match, self._setting.other),
            tenant=tenant,
            cost=permits(request) if callable(permits) else permits,
            method=request.method or "",
            notes=_request_notes(request),
            values=read_values(self._setting.values, request),
        )

    def _refusal(self, result: CheckResult) -> HttpResponse:
        response = self._admission.denial(result)
        return HttpResponse(response.body, status=response.status, headers=dict(response.headers))

    def _with_headers(self, result: CheckResult, response: HttpResponseBase) -> HttpResponseBase:
        for name, value in self._admission.limit_headers(result):
            response.headers[name] = value
        return _without_verdict(response)

    def _is_refunded(self, result: CheckResult, response: HttpResponseBase) -> bool:
        refund_when = self._setting.refund_when
        return refund_when is not None and bool(result.charged) and refund_when(response)


def _without_verdict(response: HttpResponseBase) -> HttpResponseBase:
    """Removes the application's header `Gatelock`, which a proxy or a request log takes for the guard's."""
    response.headers.pop(VERDICT, None)
    return response


def _request_notes(request: HttpRequest) -> DecisionNotes | None:
    """Returns the notes of the request log around Django, if there is one."""
    scope = getattr(request, "scope", None)
    notes: DecisionNotes | None = (
        request.META.get(NOTES_ENVIRON_KEY) if scope is None else scope.get("state", {}).get(NOTES_STATE_KEY)
    )
    return notes


def _request_path(request: HttpRequest) -> str:
    path: str = request.path_info
    return path


def _match(request: HttpRequest) -> ResolverMatch | None:
    """Returns the view that will respond; Django itself resolves it only after the middlewares."""
    try:
        return resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return None


def _route_pattern(match: ResolverMatch | None, fallback: str) -> str:
    """Returns the URL pattern, or `fallback` for a path that matches none."""
    if match is None:
        return fallback
    return "" if match.route is None else pattern_of_django(match.route)


async def _await_name(name: Any) -> str:
    awaited: str = await name if hasattr(name, "__await__") else name
    return awaited


def _call_at_end(response: HttpResponseBase, leave: Callable[[], object]) -> None:
    """Calls `leave` once: when the server closes `response`, or when a middleware has dropped it."""
    finalizer = weakref.finalize(response, leave)
    finalizer.atexit = False
    response._resource_closers.append(finalizer)  # Django's list of what `close` calls


def _leave_in_loop(
    admission: AdmissionController, result: CheckResult, loop: asyncio.AbstractEventLoop
) -> None:
    """Schedules `leave_async`: Django closes responses in a thread, and a store may have to be awaited."""
    if not loop.is_closed():
        asyncio.run_coroutine_threadsafe(admission.leave_async(result), loop)
