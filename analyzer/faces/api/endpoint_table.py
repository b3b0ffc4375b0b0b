"""The table of endpoints: each method of each path, with the scope that it needs."""

from __future__ import annotations

from analyzer.faces.api import installation_endpoints, limit_endpoints, lock_endpoints, usage_endpoints
from analyzer.faces.api.endpoints import Endpoint

ENDPOINTS: tuple[Endpoint, ...] = (
    *usage_endpoints.ENDPOINTS,
    *lock_endpoints.ENDPOINTS,
    *installation_endpoints.ENDPOINTS,
    *limit_endpoints.ENDPOINTS,
)
