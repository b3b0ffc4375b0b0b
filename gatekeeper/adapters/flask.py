"""Guards a Flask application: an extension that knows routes, so that views have costs and resources."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

try:
    from flask import Flask, Request, Response, current_app, g, request
    from werkzeug.wsgi import ClosingIterator
except ImportError as missing:
    raise ImportError("gatekeeper.adapters.flask needs Flask: install gatelock[flask]") from missing

from gatekeeper.adapters.admission_control import (
    NOTES_ENVIRON_KEY,
    AdmissionController,
    CheckResult,
    GuardLimiter,
    RequestIdentity,
    make_exemption,
    require_store_client,
)
from gatekeeper.adapters.refusal_response import HeaderStyle, limit_headers, refusal, require_style
from gatekeeper.adapters.route_patterns import pattern_of_flask
from gatekeeper.adapters.wsgi import (
    API_KEY,
    App,
    Environ,
    Extractor,
    StartResponse,
    address,
    behind,
    header,
    peer,
    user,
)
from gatekeeper.gate import Gate

__all__ = ["Guard", "address", "behind", "header", "peer", "user"]

ViewFunction = TypeVar("ViewFunction", bound=Callable[..., Any])

COST, EXEMPT = "gatelock_cost", "gatelock_exempt"


class Guard:
    """An extension that refuses requests which `gate`, or one of the limiters, does not let pass.

    `caller`, `tenant` and `address` are the extractors of `gatekeeper.adapters.wsgi`, or anything that takes
    the WSGI environment; inside of one, Flask's `g` and `request` are there, so that
    `caller=user(lambda environ: g.user.name)` works when an earlier `before_request` has set it. The
    resource is the route that the request has matched, as in /v1/items/{id}.

    The decision stands in `g.gatelock`. A function for `exempt` takes Flask's request; `refund_when` sees
    Flask's response. The other settings are as in `gatekeeper.adapters.wsgi.Guard`. Raises ValueError or
    TypeError for one that cannot be.
    """

    def __init__(
        self,
        gate: Gate,
        *limiters: GuardLimiter,
        app: Flask | None = None,
        caller: Extractor = API_KEY,
        tenant: Extractor | None = None,
        address: Extractor = peer,
        exempt: Iterable[str] | Callable[[Request], bool] = (),
        shadow: bool = False,
        headers: HeaderStyle = "draft",
        refund_when: Callable[[Response], bool] | None = None,
    ) -> None:
        require_style(headers)
        require_store_client(limiters, awaited=False)
        self._checkpoint = AdmissionController(gate, limiters, shadow=shadow)
        self._caller = caller
        self._tenant = tenant
        self._address = address
        self._exempt = make_exemption(exempt, lambda request: request.path)
        self._style: HeaderStyle = headers
        self._refund_when = refund_when
        # In the environment, not in `g`: whoever pushes an application context has one `g` for many requests.
        self._asked, self._answered = (f"gatelock.{word}.{id(self)}" for word in ("asked", "answered"))
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Guard every request of `app`. Called after functions that set what `caller` reads."""
        app.extensions["gatelock"] = self
        app.before_request(self._before)
        app.after_request(self._after)
        if self._checkpoint.holds or self._refund_when is not None:
            app.wsgi_app = self._watched(app.wsgi_app)  # type: ignore[method-assign, assignment]  # Flask's way

    def cost(self, permits: int | Callable[[], int]) -> Callable[[ViewFunction], ViewFunction]:
        """A view whose requests count as so many, or as many as a function says that reads `request`."""

        def costing(view: ViewFunction) -> ViewFunction:
            setattr(view, COST, permits)
            return view

        return costing

    def exempt(self, view: ViewFunction) -> ViewFunction:
        """A view that is let through unasked."""
        setattr(view, EXEMPT, True)
        return view

    def _before(self) -> Response | None:
        rule = request.url_rule
        view = None if rule is None else current_app.view_functions.get(rule.endpoint)
        if getattr(view, EXEMPT, False) or self._exempt(request):
            return None
        environ, permits = request.environ, getattr(view, COST, 1)
        verdict = self._checkpoint.ask(
            RequestIdentity(
                caller=self._caller(environ),
                address=self._address(environ),
                resource="" if rule is None else pattern_of_flask(rule.rule),
                tenant="" if self._tenant is None else self._tenant(environ),
                cost=permits() if callable(permits) else permits,
                method=request.method,
                note=environ.get(NOTES_ENVIRON_KEY),
            )
        )
        if not verdict.decision.allowed:
            answer = refusal(verdict.decision, self._style)
            return Response(answer.body, answer.status, answer.headers)
        g.gatelock = verdict.decision
        environ[self._asked] = verdict
        return None

    def _after(self, response: Response) -> Response:
        environ = request.environ
        verdict: CheckResult | None = environ.get(self._asked)
        if verdict is not None:
            response.headers.extend(limit_headers(verdict.decision, self._style, verdict.limiter))
            self._begin(environ, verdict, response)
            if not response.is_streamed:  # the work is done; a stream's begins now
                self._over(environ)
        return response

    def _begin(self, environ: Environ, verdict: CheckResult, response: Response) -> None:
        if verdict.spent and self._refund_when is not None and not environ.get(self._answered):
            environ[self._answered] = True
            if self._refund_when(response):
                self._checkpoint.refund(verdict)

    def _watched(self, app: App) -> App:
        """`app`, seen through to the end of its response."""

        def watched(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
            try:
                body = app(environ, start_response)
            except BaseException:
                self._over(environ, failed=True)
                raise
            return ClosingIterator(body, functools.partial(self._over, environ))

        return watched

    def _over(self, environ: Environ, *, failed: bool = False) -> None:
        verdict: CheckResult | None = environ.get(self._asked)
        if verdict is None:
            return
        if failed:  # and nobody in Flask has made a response of it, as when it debugs
            self._begin(environ, verdict, Response(status=500))
        del environ[self._asked]
        self._checkpoint.leave(verdict)
