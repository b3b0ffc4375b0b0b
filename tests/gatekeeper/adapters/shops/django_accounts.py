"""A Django project with accounts and a database: prints the statuses of users in both stacks."""

from __future__ import annotations

import asyncio
import sys

import django
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from gatekeeper import Gate
from gatekeeper.sources.fixed import FixedSource
from gatekeeper.testing import ManualClock
from tests.support.feed import a_lock


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


async def view_async(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


def main(folder: str) -> None:
    gate = Gate(FixedSource(a_lock("user:ann")), clock=ManualClock())
    assert gate.ready(1.0)
    settings.configure(
        ALLOWED_HOSTS=["*"], SECRET_KEY="a test's", DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        ROOT_URLCONF=(path("sync", view), path("async", view_async)),
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/accounts.db"}},
        SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        INSTALLED_APPS=[
            "django.contrib.contenttypes", "django.contrib.auth", "gatekeeper.adapters.django.Gatelock",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "gatekeeper.adapters.django.GuardMiddleware",
        ],
        GATELOCK={"gate": gate, "caller": "gatekeeper.adapters.django.user"},
    )  # fmt: skip
    django.setup()

    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import AsyncClient, Client

    call_command("migrate", verbosity=0)
    call_command("check")
    users = [None, *(User.objects.create_user(name, password="x") for name in ("ann", "bob"))]
    for kind in (Client, AsyncClient):
        for user in users:
            client = kind()
            if user is not None:
                client.force_login(user)
            answers = [client.get(url) for url in ("/sync", "/async")]
            statuses = [(asyncio.run(a) if kind is AsyncClient else a).status_code for a in answers]
            print(kind.__name__, user, *statuses)


if __name__ == "__main__":
    main(sys.argv[1])
