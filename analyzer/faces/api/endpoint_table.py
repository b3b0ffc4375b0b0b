"""The table of endpoints: each method of each path, with the scope that it needs."""

from __future__ import annotations

from analyzer.faces.api import installation_endpoints, policy_endpoints, usage_endpoints
from analyzer.faces.api.endpoints import Endpoint
from analyzer.faces.api.made_endpoints import MADE

ENDPOINTS: tuple[Endpoint, ...] = (
    *MADE,
    *usage_endpoints.ENDPOINTS,
    *installation_endpoints.ENDPOINTS,
    *policy_endpoints.ENDPOINTS,
)
