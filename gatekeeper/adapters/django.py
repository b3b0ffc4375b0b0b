"""Guards a Django project: a middleware, sync and async, with settings, a system check and decorators.

MIDDLEWARE = [..., "gatekeeper.adapters.django.GuardMiddleware"]
GATELOCK = {"gate": Gate("postgresql+psycopg://gate@db/gatelock"), "limiters": [SlidingLog(20, 1)]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from gatekeeper.adapters.guarding import Checkpoint, Limits, Verdict, Who
from gatekeeper.adapters.http import Style, allowance, refusal, require_style
from gatekeeper.adapters.naming import Proxies, named
from gatekeeper.adapters.routes import pattern_of_django
from gatekeeper.gate import Gate

try:
    from asgiref.sync import iscoroutinefunction, markcoroutinefunction
    from django.conf import settings
    from django.core.checks import CheckMessage, Error, register
    from django.core.signals import setting_changed
    from django.http import HttpRequest, HttpResponse, HttpResponseBase
    from django.urls import Resolver404, ResolverMatch, resolve
    from django.utils.module_loading import import_string
except ImportError as missing:
    raise ImportError("gatekeeper.adapters.django needs Django: install django") from missing

View = TypeVar("View", bound=Callable[..., Any])
Extractor = Callable[[HttpRequest], str]

COST, EXEMPT = "gatelock_cost", "gatelock_exempt"


def cost(permits: int) -> Callable[[View], View]:
    """A view whose requests count as so many."""

    def costing(view: View) -> View:
        setattr(view, COST, permits)
        return view

    return costing


def exempt(view: View) -> View:
    """A view that is let through unasked."""
    setattr(view, EXEMPT, True)
    return view


def api_key(request: HttpRequest) -> str:
    """The caller by the header X-API-Key."""
    return named("api_key", request.headers.get("x-api-key", ""))


def user(request: HttpRequest) -> str:
    """The caller by the authenticated user's name; put the middleware behind AuthenticationMiddleware."""
    someone = getattr(request, "user", None)
    return named("user", someone.get_username()) if someone is not None and someone.is_authenticated else ""


class Setting(NamedTuple):
    """GATELOCK of the project's settings. What is a function there may be given by its dotted path."""

    gate: Gate
    limiters: tuple[Limits, ...] = ()
    caller: Extractor = api_key
    tenant: Extractor | None = None
    trusted_proxies: Iterable[str] = ()
    exempt: Iterable[str] = ()
    shadow: bool = False
    headers: Style = "draft"
    refund_when: Callable[[HttpResponseBase], bool] | None = None


def setting_of(given: Any) -> Setting:
    """GATELOCK as it is meant. Raises ValueError, TypeError and ImportError, with what is wrong in it."""
    if not isinstance(given, dict) or "gate" not in given:
        raise ValueError('GATELOCK: expected {"gate": Gate(...) or its URL, ...}')
    if unknown := given.keys() - set(Setting._fields):
        raise ValueError(
            f"GATELOCK knows no {', '.join(sorted(unknown))}; it has {', '.join(Setting._fields)}"
        )
    said = {
        name: import_string(value)
        if name in ("caller", "tenant", "refund_when") and isinstance(value, str)
        else value
        for name, value in given.items()
    }
    if isinstance(said["gate"], str):
        said["gate"] = Gate(said["gate"])
    said["limiters"] = tuple(said.get("limiters", ()))
    found = Setting(**said)
    require_style(found.headers)
    Proxies(found.trusted_proxies)
    return found


@register("security")  # type: ignore[untyped-decorator]  # Django has no types
def check_setting(app_configs: object, **_more: object) -> list[CheckMessage]:
    """For `manage.py check`: what is wrong with GATELOCK."""
    try:
        setting_of(getattr(settings, "GATELOCK", None))
    except (ValueError, TypeError, ImportError) as wrong:
        return [Error(str(wrong), id="gatelock.E001")]
    return []


class GuardMiddleware:
    """Refuses requests that the gate, or one of the limiters, does not let pass. The decision stands in
    `request.gatelock`; the resource is the URL pattern that the path matches, as in /v1/items/{id}."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._load()
        setting_changed.connect(self._changed)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def _changed(self, *, setting: str, **_more: object) -> None:
        if setting == "GATELOCK":
            self._load()

    def _load(self) -> None:
        self._set = setting_of(getattr(settings, "GATELOCK", None))
        self._checkpoint = Checkpoint(self._set.gate, self._set.limiters, shadow=self._set.shadow)
        self._proxies = Proxies(self._set.trusted_proxies)
        self._exempt = frozenset(self._set.exempt)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._call_async(request)
        who = self._who(request)
        if who is None:
            return self._get_response(request)
        verdict = self._checkpoint.ask(who)
        if not verdict.decision.allowed:
            return self._refused(verdict)
        request.gatelock = verdict.decision  # for the views
        response = self._told(verdict, self._get_response(request))
        if self._is_given_back(verdict, response):
            self._checkpoint.refund(verdict)
        return response

    async def _call_async(self, request: HttpRequest) -> HttpResponseBase:
        who = self._who(request)
        if who is None:
            passed: HttpResponseBase = await self._get_response(request)
            return passed
        verdict = await self._checkpoint.ask_async(who)
        if not verdict.decision.allowed:
            return self._refused(verdict)
        request.gatelock = verdict.decision  # for the views
        response = self._told(verdict, await self._get_response(request))
        if self._is_given_back(verdict, response):
            await self._checkpoint.refund_async(verdict)
        return response

    def _who(self, request: HttpRequest) -> Who | None:
        match = _match(request)
        view = None if match is None else match.func
        if request.path in self._exempt or getattr(view, EXEMPT, False):
            return None
        forwarded = request.headers.get("x-forwarded-for")
        return Who(
            caller=self._set.caller(request),
            address=self._proxies.client(
                request.META.get("REMOTE_ADDR", ""), [forwarded] if forwarded else []
            ),
            resource="" if match is None or match.route is None else pattern_of_django(match.route),
            tenant="" if self._set.tenant is None else self._set.tenant(request),
            cost=getattr(view, COST, 1),
            method=request.method or "",
        )

    def _refused(self, verdict: Verdict) -> HttpResponse:
        answer = refusal(verdict.decision, self._set.headers)
        return HttpResponse(answer.body, status=answer.status, headers=dict(answer.headers))

    def _told(self, verdict: Verdict, response: HttpResponseBase) -> HttpResponseBase:
        for name, value in allowance(verdict.decision, self._set.headers):
            response.headers[name] = value
        return response

    def _is_given_back(self, verdict: Verdict, response: HttpResponseBase) -> bool:
        wanted = self._set.refund_when
        return wanted is not None and bool(verdict.spent) and wanted(response)


def _match(request: HttpRequest) -> ResolverMatch | None:
    """The view that will answer: middlewares come before Django looks for it, and refusing must, too."""
    try:
        return resolve(request.path_info, getattr(request, "urlconf", None))
    except Resolver404:
        return None
