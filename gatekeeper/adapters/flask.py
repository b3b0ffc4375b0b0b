"""Guards a Flask application: an extension that knows routes, so that views have costs and resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gatekeeper.adapters.guarding import Checkpoint, Limits, Verdict, Who
from gatekeeper.adapters.http import Style, allowance, refusal, require_style
from gatekeeper.adapters.routes import pattern_of_flask
from gatekeeper.adapters.wsgi import API_KEY, Extractor, peer
from gatekeeper.gate import Gate

try:
    from flask import Flask, Response, current_app, g, request
except ImportError as missing:
    raise ImportError("gatekeeper.adapters.flask needs Flask: install flask") from missing

View = TypeVar("View", bound=Callable[..., Any])

COST, EXEMPT = "gatelock_cost", "gatelock_exempt"


class Guard:
    """An extension that refuses requests which `gate`, or one of the limiters, does not let pass.

    `caller`, `tenant` and `address` are the extractors of `gatekeeper.adapters.wsgi`, or anything that takes
    the WSGI environment; inside of one, Flask's `g` and `request` are there, so that
    `caller=lambda environ: f"user:{g.user.id}"` works when an earlier `before_request` has set it. The
    resource is the route that the request has matched, as in /v1/items/{id}.

    The decision stands in `g.gatelock`. `refund_when` sees Flask's response. Raises ValueError for a
    setting that cannot be.
    """

    def __init__(
        self,
        gate: Gate,
        *limiters: Limits,
        app: Flask | None = None,
        caller: Extractor = API_KEY,
        tenant: Extractor | None = None,
        address: Extractor = peer,
        exempt: Iterable[str] = (),
        shadow: bool = False,
        headers: Style = "draft",
        refund_when: Callable[[Response], bool] | None = None,
    ) -> None:
        require_style(headers)
        self._checkpoint = Checkpoint(gate, limiters, shadow=shadow)
        self._caller = caller
        self._tenant = tenant
        self._address = address
        self._exempt = frozenset(exempt)
        self._style: Style = headers
        self._refund_when = refund_when
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Guard every request of `app`. Called after functions that set what `caller` reads."""
        app.extensions["gatelock"] = self
        app.before_request(self._before)
        app.after_request(self._after)

    def cost(self, permits: int) -> Callable[[View], View]:
        """A view whose requests count as so many."""

        def costing(view: View) -> View:
            setattr(view, COST, permits)
            return view

        return costing

    def exempt(self, view: View) -> View:
        """A view that is let through unasked."""
        setattr(view, EXEMPT, True)
        return view

    def _before(self) -> Response | None:
        rule = request.url_rule
        view = None if rule is None else current_app.view_functions.get(rule.endpoint)
        if request.path in self._exempt or getattr(view, EXEMPT, False):
            return None
        environ = request.environ
        verdict = self._checkpoint.ask(
            Who(
                caller=self._caller(environ),
                address=self._address(environ),
                resource="" if rule is None else pattern_of_flask(rule.rule),
                tenant="" if self._tenant is None else self._tenant(environ),
                cost=getattr(view, COST, 1),
                method=request.method,
            )
        )
        if not verdict.decision.allowed:
            answer = refusal(verdict.decision, self._style)
            return Response(answer.body, answer.status, answer.headers)
        g.gatelock, g.gatelock_verdict = verdict.decision, verdict
        return None

    def _after(self, response: Response) -> Response:
        verdict: Verdict | None = g.get("gatelock_verdict")
        if verdict is not None:
            response.headers.extend(allowance(verdict.decision, self._style))
            if verdict.spent and self._refund_when is not None and self._refund_when(response):
                self._checkpoint.refund(verdict)
        return response
