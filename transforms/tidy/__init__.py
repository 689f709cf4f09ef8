"""Tier 0: the graph says the same with less, and what is known before a call is not computed in it."""
