"""The pages in Debian's Chromium, and a guarded application."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from analyzer.judging.locks.lock_feed import new_mark
from analyzer.judging.locks.locks_by_hand import Effect, LockTarget, set_locks
from analyzer.kernel.by import By
from analyzer.kernel.tokens import create
from gatekeeper import Gate
from gatekeeper.adapters.asgi import Guard
from tests.support.plain_http import Client
from tests.support.uvicorn import serving
from tests.support.waiting import wait_until
from tests.web.dashboard.test_pages import ADDRESSES

SHOTS = Path(".cache/screenshots")  # kept after the run
SIZES = {"wide": (1360, 900), "narrow": (390, 800)}
SERIOUS = ("serious", "critical")
SEEN_S = 20.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium."""
    program = shutil.which("chromium")
    if program is None:
        text = "no chromium: apt-get install chromium"
        if os.environ.get("CI") == "true":
            pytest.fail(text)
        pytest.skip(text)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


class Console:
    """A page of a browser, with what its console says."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self.said: list[str] = []
        self.asked: set[str] = set()
        self.page.on("console", lambda one: self.said.append(one.text) if one.type != "log" else None)
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda one: self.asked.add(one.url))


@pytest.fixture
def console(browser: Browser) -> Iterator[Console]:
    with browser.new_context(timezone_id="Europe/Berlin") as context:
        context.set_default_timeout(SEEN_S * 1000)
        yield Console(context)


async def shop(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"sold"})


def found_by_axe(page: Page) -> list[str]:
    """The serious findings of axe-core."""
    found = Axe().run(page).response["violations"]
    return [f"{one['id']}: {one['nodes'][0]['target']}" for one in found if one["impact"] in SERIOUS]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("database", ["sqlite"])
def test_each_page_is_drawn_without_an_error_and_for_everyone(
    browser: Browser, address: str, scheme: Any, size: str
) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    width, height = SIZES[size]
    with browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": height}, timezone_id="Europe/Berlin"
    ) as context:
        console = Console(context)
        for path in ADDRESSES:
            console.page.goto(address + path)
            expect(console.page.locator("h1")).to_be_visible()
            charts = console.page.locator(".chart").count()
            expect(console.page.locator(".chart canvas")).to_have_count(charts)
            name = path.partition("?")[0].strip("/") or "now"
            console.page.screenshot(path=SHOTS / f"{name}-{scheme}-{size}.png", full_page=True)
            assert found_by_axe(console.page) == []
            assert console.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert console.said == []
        assert {one for one in console.asked if not one.startswith(address)} == set()


def test_axe_would_find_a_field_without_a_name(console: Console) -> None:
    console.page.set_content("<html lang=en><title>x</title><body><input></body></html>")
    assert [one.partition(":")[0] for one in found_by_axe(console.page)] == ["label"]


def test_a_caller_is_locked_and_unlocked_and_the_application_obeys(
    console: Console, address: str, engine: sa.Engine, migrated_url: str
) -> None:
    token, page = create(engine, "ops", "operate", None, "test", "for a test"), console.page
    read = create(engine, "gate", "read", None, "test", "for a test")
    with (
        Gate(address, token=read) as gate,
        serving(Guard(shop, gate)) as application,
        Client(base_url=application, timeout=20) as bob,
    ):

        def wait_for(status: int) -> None:
            def answers() -> bool:
                return bob.get("/", headers={"x-api-key": "bob"}).status_code == status

            wait_until(answers, SEEN_S, lambda: f"the application does not answer {status}")

        wait_for(200)
        page.goto(f"{address}/callers")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("link", name="api_key:bob").click()
        expect(page.get_by_text("Not locked.")).to_be_visible()
        page.locator(".acts summary", has_text="Lock").click()
        lock = page.locator("form[action='/acts/locks/lock']")
        lock.get_by_label("Reason").fill("too many exports")
        lock.get_by_role("button", name="Lock").click()
        expect(page.get_by_text("Done: locks lock.")).to_be_visible()
        wait_for(429)
        expect(page.locator("#table-history")).to_contain_text("deny")
        page.locator(".acts summary", has_text="Unlock").click()
        unlock = page.locator(".acts form[action='/acts/locks/unlock']")
        unlock.get_by_label("Reason").fill("INC-312 solved")
        unlock.get_by_role("button", name="Unlock").click()
        expect(page.get_by_text("Done: locks unlock.")).to_be_visible()
        wait_for(200)
        page.get_by_role("link", name="Audit log").click()
        expect(page.locator("#table-trail")).to_contain_text("INC-312 solved")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token")).to_be_visible()


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_statement_is_printed_on_a4_without_anything_from_elsewhere(browser: Browser, address: str) -> None:
    with browser.new_context(viewport={"width": 794, "height": 1123}) as context:
        console = Console(context)
        page = console.page
        page.goto(f"{address}/caller?caller=api_key:acme")
        page.goto(address + str(page.locator('a[href^="/statement"]').first.get_attribute("href")))
        expect(page.locator("h1")).to_have_text("api_key:acme")
        assert page.locator("h1").evaluate("one => getComputedStyle(one).fontSize") == "26.6667px"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        SHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SHOTS / "statement.png", full_page=True)
        page.emulate_media(media="print")
        assert page.evaluate("getComputedStyle(document.body).margin") == "0px"
        assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")
        assert found_by_axe(page) == []
        assert console.said == []
        assert {one for one in console.asked if not one.startswith(address)} == set()


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_page_shows_a_new_lock_by_itself_and_keeps_what_is_drawn(
    console: Console, address: str, engine: sa.Engine
) -> None:
    page = console.page
    page.goto(address)
    expect(page.locator(".chart canvas")).to_have_count(1)
    page.evaluate("document.querySelector('.chart canvas').dataset.seen = 'yes'")
    expect(page.locator("#table-locks tbody tr")).to_have_count(1)
    bob = [LockTarget("caller", "api_key:bob")]
    set_locks(engine, bob, 3_600_000, Effect(), By("test", "INC-1"), new_mark)
    expect(page.locator("#table-locks tbody tr")).to_have_count(2)
    assert page.locator(".chart canvas").get_attribute("data-seen") == "yes"


@pytest.mark.parametrize("database", ["sqlite"])
def test_a_filter_stays_in_the_address_and_everything_is_reached_by_keyboard(
    console: Console, address: str
) -> None:
    page = console.page
    page.goto(f"{address}/callers")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.get_by_role("group", name="Time").get_by_role("link", name="24h").click()
    page.get_by_label("Caller", exact=True).fill("bob")
    page.keyboard.press("Enter")
    expect(page.locator("#table-callers tbody tr")).to_have_count(1)
    assert "caller=bob" in page.url
    assert "span=24h" in page.url
    page.reload()
    expect(page.locator("#table-callers tbody tr")).to_have_count(1)
