"""The pages, in the order of the navigation, with the scope that each needs."""

from __future__ import annotations

from analyzer.faces.pages import (
    alerts_page,
    attack_page,
    caller_page,
    callers_page,
    days_page,
    health_page,
    installation_pages,
    locks_page,
    neighbours_page,
    now_page,
    policies_page,
    signals_page,
)
from analyzer.faces.pages.page_request import Page

PAGES = (
    Page("/", "Now", "view", now_page.now, ("span",)),
    Page(signals_page.PATH, "Signals", "view", signals_page.signals),
    Page("/callers", "Callers", "view", callers_page.callers, ("span", "caller", "tenant", "meter")),
    Page("/caller", "", "view", caller_page.caller, ("span",), ("caller",)),
    Page("/locks", "Locks", "view", locks_page.locks, ("caller", "resource", "policy", "mode")),
    Page("/policies", "Policies", "view", policies_page.policies, ("policy", "mode")),
    Page("/policy", "", "view", policies_page.policy, ("span", "limit"), ("policy",)),
    Page("/neighbours", "Neighbours", "view", neighbours_page.neighbours, ("span", "resource", "meter")),
    Page("/attack", "Attack", "view", attack_page.attack, ("span",)),
    Page("/gates", "Gates", "view", installation_pages.gates),
    Page("/days", "Days", "view", days_page.days),
    Page("/alerts", "Alerts", "operate", alerts_page.alerts),
    Page("/health", "Health", "operate", health_page.health, ("span",)),
    Page("/trail", "Audit log", "operate", installation_pages.trail, ("span", "caller")),
)
