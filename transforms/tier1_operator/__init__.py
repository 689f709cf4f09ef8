"""Tier 1, inside operators: another algorithm, tiles, packing, instructions."""
