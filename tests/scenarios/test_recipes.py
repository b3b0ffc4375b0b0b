"""The recipes of docs/policies.md, from raw log lines to a refused request."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from analyzer.config.settings import load
from analyzer.flush.flush_executors import InlineFlushes
from analyzer.judging.sql.raised_notices import raised_notices
from gatekeeper.model import Decision
from tests.support.whole_loop import World

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
BLOCK = re.compile(r"```toml\n(.*?)```", re.DOTALL)
ITEMS = "/v1/items/{id}"
LINES_MAX = 10  # of a configuration

Open = Callable[[str], World]


def blocks(heading: str) -> list[str]:
    """Returns the configurations of a section; those before the first section for ""."""
    sections = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}
    text = sections[heading] if heading else PAGE.partition("\n## ")[0]
    return [str(block) for block in BLOCK.findall(text)]


@pytest.fixture
def open_recipe(sqlite_template: Path, tmp_path: Path) -> Iterator[Open]:
    """Returns a function that starts the world of a recipe."""
    opened: list[World] = []

    def open_world(heading: str) -> World:
        [source], recipe = blocks(""), "".join(blocks(heading))
        copy = tmp_path / "gatelock.db"
        shutil.copyfile(sqlite_template, copy)
        file = tmp_path / "gatelock.toml"
        file.write_text(source + recipe)
        world = World(f"sqlite:///{copy}", InlineFlushes(), load(file).plan())
        opened.append(world)
        world.gate.ready(1)
        world.pass_s(1)
        return world

    yield open_world
    for world in opened:
        world.close()


def write(world: World, count: int, **fields: str | int) -> None:
    """Writes requests of now to the log, as an application does."""
    now = world.clock.now()
    record = {"time": now.isoformat(), "path": "/v1/items/7", "status": 200, "gate": ""} | fields
    for _ in range(count):
        world.log.append(json.dumps(record).encode(), world.clock.wall_ns() // 1_000_000)


def refusal(world: World, caller: str = "", address: str = "") -> Decision | None:
    """Lets a second pass; returns the decision on the next request, None when it is admitted."""
    world.pass_s(1)
    decision = world.gate.check(caller, address=address)
    return None if decision.allowed else decision


def admitted(world: World, key: str, resource: str = ITEMS) -> int:
    """Returns how many of twenty requests of one moment are admitted."""
    return sum(world.gate.check(f"api_key:{key}", resource=resource).allowed for _ in range(20))


def hours_left(world: World, decision: Decision) -> float:
    assert decision.until is not None
    return (decision.until - world.clock.now()).total_seconds() / 3600


def test_recipes_are_short() -> None:
    for heading in (
        "Quotas",
        "Noisy neighbours",
        "Floods",
        "Guessed passwords",
        "Some requests only",
        "Probes",
    ):
        for block in blocks(heading):
            assert len([line for line in block.splitlines() if line.strip()]) <= LINES_MAX


def test_quotas_refuse_at_a_number_of_requests_and_at_a_number_of_bytes(open_recipe: Open) -> None:
    world = open_recipe("Quotas")
    for _ in range(3):
        write(world, 3, key="large", ip="192.0.2.1", bytes_out=200 << 20)
    assert refusal(world, "api_key:large") is None, "1.8 GB are below 2 GiB"
    write(world, 2, key="large", ip="192.0.2.1", bytes_out=200 << 20)
    by_bytes = refusal(world, "api_key:large")
    assert by_bytes is not None
    assert by_bytes.policy == "daily-traffic"
    assert by_bytes.detail == "2 GiB of traffic per day (Europe/Berlin), 2,200 MiB counted"
    assert 0 < hours_left(world, by_bytes) < 24


def test_the_quota_of_a_month_refuses_until_the_month_ends(open_recipe: Open) -> None:
    world = open_recipe("Quotas")
    world.log.taken_max = 100_000
    write(world, 100_000, key="acme", ip="192.0.2.1", bytes_out=1)
    by_requests = refusal(world, "api_key:acme")
    assert by_requests is not None
    assert by_requests.policy == "monthly"
    assert by_requests.detail == sentence("Quotas")
    assert by_requests.until is not None
    assert by_requests.until.isoformat() == "2026-11-30T23:00:00+00:00", "the month ends in Berlin"
    assert refusal(world, "api_key:ann") is None
    [raised] = raised_notices(world.engine)
    assert (raised.notice.at.key, raised.notice.at.threshold) == ("api_key:acme", 800)


def test_a_noisy_neighbour_is_slowed_on_its_route_as_long_as_it_takes_too_much(open_recipe: Open) -> None:
    world = open_recipe("Noisy neighbours")
    world.log.taken_max = 40_000
    others(world, 2_100, failed=4)
    world.pass_s(1)
    world.clock.jump(400)
    write(world, 12_600, key="acme", ip="192.0.2.1")
    write(world, 8_999, key="large", ip="192.0.2.2", path="/v1/search")  # alone there, and below the floor
    others(world, 1_540, failed=48)
    assert admitted(world, "acme") == 20, "a minute must pass first"
    world.pass_s(57)
    assert admitted(world, "acme") == 20
    world.pass_s(6)
    # The bucket of the gate holds ten, and gets ten a second.
    assert 10 <= admitted(world, "acme") <= 11
    refused = world.gate.check("api_key:acme", resource=ITEMS)
    assert (refused.allowed, refused.policy, refused.status) == (False, "neighbour", 429)
    assert refused.detail == sentence("Noisy neighbours")
    assert admitted(world, "acme", "/v1/search") == 20, "on another route"
    assert admitted(world, "large", "/v1/search") == 20
    assert admitted(world, "other-0") == 20
    for _ in range(6):  # what the gate lets through is less than a quarter of the route
        write(world, 10, key="acme", ip="192.0.2.1")
        write(world, 30, key="acme", ip="192.0.2.1", gate='denied;policy="neighbour"', status=429)
        write(world, 500, key="other-0", ip="192.0.2.3")
        world.clock.jump(60)
        world.pass_s(3)
    assert admitted(world, "acme") == 20


def others(world: World, count: int, failed: int) -> None:
    """Writes requests of ten callers, so many of each."""
    for number in range(10):
        write(world, count - failed, key=f"other-{number}", ip="192.0.2.3")
        write(world, failed, key=f"other-{number}", ip="192.0.2.3", status=503)


def test_a_flood_of_an_address_is_refused_and_the_second_one_for_longer(open_recipe: Open) -> None:
    world = open_recipe("Floods")
    write(world, 299, key="acme", ip="192.0.2.1")
    write(world, 299, key="ann", ip="192.0.2.2")
    assert refusal(world, address="192.0.2.1") is None
    write(world, 1, key="other", ip="192.0.2.1")
    first = refusal(world, address="192.0.2.1")
    assert first is not None
    assert first.policy == "flood"
    assert first.detail == "300 requests in any 1m, 300 counted; locked for 10m"
    assert refusal(world, address="192.0.2.2") is None
    write(world, 50, key="acme", ip="192.0.2.1", gate='denied;policy="flood"')
    world.clock.jump(600)
    world.pass_s(2)
    assert refusal(world, address="192.0.2.1") is None, "after ten minutes"
    write(world, 314, key="acme", ip="192.0.2.1")
    again = refusal(world, address="192.0.2.1")
    assert again is not None
    assert again.detail == sentence("Floods")
    assert 0.99 < hours_left(world, again) < 1


def test_a_flood_from_many_addresses_of_a_network_is_refused(open_recipe: Open) -> None:
    world = open_recipe("Floods")
    for number in range(30):
        write(world, 50, key="", ip=f"203.0.113.{number}")
        write(world, 1, key="", ip=f"198.51.{number}.7")
    world.pass_s(1)
    decision = refusal(world, address="203.0.113.200")
    assert decision is not None
    assert decision.policy == "flood-from-a-network"
    assert refusal(world, address="198.51.3.7") is None


def test_an_address_most_of_whose_requests_fail_is_refused(open_recipe: Open) -> None:
    world = open_recipe("Guessed passwords")
    write(world, 950, key="", ip="192.0.2.7")
    write(world, 50, key="", ip="192.0.2.7", status=401)
    write(world, 2, key="", ip="192.0.2.66")
    write(world, 19, key="", ip="192.0.2.66", status=401)
    assert refusal(world, address="192.0.2.66") is None
    write(world, 1, key="", ip="192.0.2.66", status=401)
    refused = refusal(world, address="192.0.2.66")
    assert refused is not None
    assert (refused.policy, refused.detail) == ("stuffing", sentence("Guessed passwords"))
    assert refusal(world, address="192.0.2.7") is None, "an office"


def test_a_policy_on_some_requests_counts_no_others_and_locks_on_their_route(open_recipe: Open) -> None:
    world = open_recipe("Some requests only")
    write(world, 59, key="acme", ip="192.0.2.1", method="POST", path="/v1/search?q=1")
    write(world, 60, key="acme", ip="192.0.2.1", method="GET", path="/v1/search")
    write(world, 60, key="acme", ip="192.0.2.1", method="POST")
    world.pass_s(1)
    assert admitted(world, "acme", "/v1/search") == 20
    write(world, 1, key="acme", ip="192.0.2.1", method="POST", path="/v1/search")
    world.pass_s(1)
    refused = world.gate.check("api_key:acme", resource="/v1/search")
    assert (refused.policy, refused.detail) == ("searches", sentence("Some requests only"))
    assert admitted(world, "acme") == 20, "on another route"


def test_probes_for_files_and_for_injections_are_refused(open_recipe: Open) -> None:
    world = open_recipe("Probes")
    for path in ("/.env", "/a/.env", "/wp-admin/x", "/.git/config"):
        write(world, 1, key="", ip="192.0.2.66", path=path, status=404)
    write(world, 9, key="", ip="192.0.2.66", path="/x", status=404)
    write(world, 9, key="", ip="192.0.2.7", path="/shop.php")
    for query in ("q=1%20UNION%20select%202", "q=sleep(5)", "q=information_schema"):
        write(world, 1, key="", ip="192.0.2.67", path=f"/v1/search?{query}")
    assert refusal(world, address="192.0.2.66") is None
    write(world, 1, key="", ip="192.0.2.66", path="/y.php?z", status=404)
    probing = refusal(world, address="192.0.2.66")
    assert probing is not None
    assert (probing.policy, probing.detail) == ("probing", sentence("Probes"))
    injections = refusal(world, address="192.0.2.67")
    assert injections is not None
    assert injections.policy == "injections"
    assert refusal(world, address="192.0.2.7") is None


def sentence(heading: str) -> str:
    """Returns the sentence of a refusal that a section of the page shows."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    [found] = re.findall(r"entence[^\n]*:\n\n    ([^\n]+)\n", section)
    return str(found)
