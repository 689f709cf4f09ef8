"""Tier 0: the graph says the same with less."""
