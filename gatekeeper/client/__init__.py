"""A typed client of the API: what commands of `gatelock` read and do, from another program.

- `operations`: `Gatelock`, with a method for each endpoint; `make client` writes it by the server's table
- `connection`: the connection behind it, and the errors
"""

from gatekeeper.client.connection import (
    ApiConnection,
    ApiError,
    ConfirmationNeeded,
    ServerAway,
)
from gatekeeper.client.operations import Gatelock

__all__ = ["ApiConnection", "ApiError", "ConfirmationNeeded", "Gatelock", "ServerAway"]
