"""Refuse requests inside the frameworks people use: thin layers over a gate and `http`."""
