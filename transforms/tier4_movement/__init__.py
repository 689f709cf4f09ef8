"""Tier 4, global data movement: order, memory shared over time, and what need not move at all."""
