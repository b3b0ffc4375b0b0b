"""A typed client of the API: what commands of `gatelock` read and do, from another program.

- `api_client`: `ApiClient`, with a method for each endpoint; `make client` writes it by the server's table
- `connection`: the connection behind it, and the errors
"""

from gatekeeper.client.api_client import ApiClient
from gatekeeper.client.connection import (
    ApiConnection,
    ApiError,
    ConfirmationNeeded,
    ServerAway,
)

__all__ = ["ApiClient", "ApiConnection", "ApiError", "ConfirmationNeeded", "ServerAway"]
