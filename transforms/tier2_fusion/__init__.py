"""Tier 2, fusion: operators run in one, so that values in between never reach memory."""
