"""Which stories run in which framework: all in one of ASGI and of WSGI, in others those about its code."""

from __future__ import annotations

import pytest

WHOLE = ("asgi", "wsgi")
# Of a framework's request, response, routes or errors; the rest is the controller's, which all share.
ABOUT_THE_FRAMEWORK = {
    "test_a_locked_caller_is_denied_with_the_reason_and_others_are_served",
    "test_a_verdict_in_the_applications_own_response_is_removed",
    "test_the_decision_is_in_the_requests_state_with_its_tags",
    "test_tenant_address_and_resource_are_checked",
    "test_exempt_paths_pass_without_a_check",
    "test_refunded_requests_take_no_permits",
    "test_responses_have_the_chosen_headers_about_limits",
    "test_a_stream_is_in_flight_until_it_ends",
    "test_a_view_that_raises_is_no_longer_in_flight",
    "test_the_body_of_a_denied_request_disturbs_neither_the_response_nor_the_next_request",
    "test_no_spelling_of_an_exempt_path_reaches_a_guarded_view",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the other stories of other frameworks for `make deep`."""
    for item in items:
        framework = getattr(getattr(item, "callspec", None), "params", {}).get("running")
        if framework is None or framework in WHOLE:
            continue
        if getattr(item, "originalname", "") not in ABOUT_THE_FRAMEWORK:
            item.add_marker(pytest.mark.deep("the controller's story, in another framework"))
