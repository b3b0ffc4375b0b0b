"""Stores what billing services have acknowledged."""
