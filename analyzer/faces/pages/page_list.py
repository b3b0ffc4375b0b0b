"""The pages, in the order of the navigation, with the scope that each needs."""

from __future__ import annotations

from analyzer.faces.pages import caller_page, installation_pages, signals_page, traffic_pages
from analyzer.faces.pages.page_request import Page

PAGES = (
    Page("/", "Now", "view", traffic_pages.now, ("span",)),
    Page(signals_page.PATH, "Signals", "view", signals_page.signals),
    Page("/callers", "Callers", "view", traffic_pages.callers, ("span", "caller", "meter")),
    Page("/caller", "", "view", caller_page.caller, ("span", "caller")),
    Page("/policies", "Policies", "view", installation_pages.policies, ("policy", "mode")),
    Page("/policy", "", "view", installation_pages.policy, ("span", "policy")),
    Page("/gates", "Gates", "view", installation_pages.gates),
    Page("/attack", "Attack", "view", traffic_pages.attack, ("span",)),
    Page("/days", "Days", "view", installation_pages.days),
    Page("/health", "Health", "operate", installation_pages.health, ("span",)),
    Page("/trail", "Trail", "operate", installation_pages.trail, ("span", "caller")),
)
