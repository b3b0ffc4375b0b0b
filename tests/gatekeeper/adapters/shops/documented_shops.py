"""The applications of docs/gatekeeper.md as they are shown there, with a request log around them.

SHOP_SOURCE replaces the URL of the gate. The log is requests.log in SHOP_FOLDER.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from gatekeeper.requestlog import asgi as asgi_log
from gatekeeper.requestlog import wsgi as wsgi_log

PAGE = (Path(__file__).parents[4] / "docs" / "gatekeeper.md").read_text()
URL = "postgresql+psycopg://gate@db.example/gatelock"
LOG = Path(os.environ.get("SHOP_FOLDER", ".")) / "requests.log"


def documented(heading: str) -> list[dict[str, Any]]:
    """Returns the names that each snippet under a heading defines."""
    part = re.search(rf"^### {re.escape(heading)}\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL)
    assert part, heading
    found = []
    for snippet in re.findall(r"```python\n(.*?)```", part[1], re.DOTALL):
        names: dict[str, Any] = {"__name__": "shop"}
        exec(snippet.replace(URL, os.environ["SHOP_SOURCE"]), names)  # noqa: S102 - from this repository
        found.append(names)
    assert URL in part[1]
    return found


def asgi() -> Any:
    return asgi_log.RequestLog(documented("Any ASGI application")[0]["app"], to=LOG)


def fastapi() -> Any:
    return asgi_log.RequestLog(documented("FastAPI")[0]["app"], to=LOG)


def flask() -> Any:
    shop = documented("Flask")[0]["app"]
    shop.wsgi_app = wsgi_log.RequestLog(shop.wsgi_app, to=LOG)
    return shop


def wsgi() -> Any:
    return wsgi_log.RequestLog(documented("Any WSGI application")[0]["app"], to=LOG)


def configure_django() -> None:
    import django
    from django.conf import settings
    from django.urls import path

    shop, views = documented("Django")
    settings.configure(
        ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", LOGGING_CONFIG=None,
        ROOT_URLCONF=(path("items/<int:item_id>", views["item"]), path("healthz", views["healthz"])),
        **{name: value for name, value in shop.items() if name.isupper()},
    )  # fmt: skip
    django.setup()


def django() -> Any:
    configure_django()
    from django.core.handlers.wsgi import WSGIHandler

    return wsgi_log.RequestLog(WSGIHandler(), to=LOG)


def django_async() -> Any:
    configure_django()
    from django.core.handlers.asgi import ASGIHandler

    return asgi_log.RequestLog(ASGIHandler(), to=LOG)
