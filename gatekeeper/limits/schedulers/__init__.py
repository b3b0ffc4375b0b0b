"""Schedulers: run or admit jobs in an order, by priority or by key."""
