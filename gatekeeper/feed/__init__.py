"""Keeping a view current: the poller, the feed's JSON format, and the view saved on disk.

Where an update comes from is in `gatekeeper.sources`; what a view answers in `gatekeeper.view`.
"""
