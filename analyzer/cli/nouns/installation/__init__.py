"""Nouns about the work of the installation: what operators and jobs did."""
