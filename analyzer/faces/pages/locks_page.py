"""All locks, those of policies and those by hand."""

from __future__ import annotations

from collections.abc import Iterator

from analyzer.faces.api.pages import PagePlace
from analyzer.faces.pages.lock_blocks import LENGTH, lock_columns, lock_row
from analyzer.faces.pages.page_content import ActForm, Content, Input, PageTable, RowOrder
from analyzer.faces.pages.page_request import PageRequest, PlacedFields, listed
from analyzer.judging.locks.stored_locks import LockSearch, count_locks, locks_in_force
from analyzer.kernel.database.clock import millis

PATH = "/locks"
LIKE: PagePlace = (0, "", "", "", "")


def locks(request: PageRequest) -> Content:
    """Returns the locks that the filters want, the latest end first. Raises HttpProblem."""
    filters = request.filters
    in_shadow = filters.mode == "shadow"
    policy, resource = filters.policy or None, filters.resource
    search = LockSearch(text=filters.caller, policy=policy, resource=resource, in_shadow=in_shadow)

    def behind(place: PagePlace | None) -> Iterator[PlacedFields]:
        # A place of this list has these five parts.
        start = None if place is None else (int(place[0]), *map(str, place[1:]))
        for lock in locks_in_force(request.engine, search=search, behind=start):  # type: ignore[arg-type]  # five
            at = (-millis(lock.until), lock.policy, lock.scope, lock.key, lock.resource or "")
            yield at, lock_row(lock)

    rows = listed(request, PATH, behind, LIKE)
    is_filtered = filters.caller or filters.policy or resource or in_shadow
    empty = "No lock is like this." if is_filtered else "No lock is in force."
    table = PageTable(
        "locks", "Locks in shadow, which no gate has" if in_shadow else "In force", lock_columns(request),
        **rows._asdict(), empty=empty, total=count_locks(request.engine, search),
        order=RowOrder("until", "The latest end first: the order that has an index."),
    )  # fmt: skip
    return Content("Locks", forms=lock_forms() if request.visitor.may_act("operate") else (), blocks=[table])


def lock_forms(address: str = "") -> list[ActForm]:
    """Returns the forms that lock something by hand; `address` is proposed as the range."""
    ranges = Input("address", "Address or range", address, hint="203.0.113.0/24", required=True)
    return [
        ActForm("Lock a caller", "/v1/locks/lock", {},
                [Input("caller", "Caller", hint="api_key:acme", required=True), LENGTH], "Lock"),
        ActForm("Lock an address", "/v1/locks/lock", {}, [ranges, LENGTH], "Lock"),
        ActForm("Lock a tenant", "/v1/locks/lock", {},
                [Input("tenant", "Tenant", hint="acme", required=True), LENGTH], "Lock"),
    ]  # fmt: skip
