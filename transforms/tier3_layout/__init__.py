"""Tier 3, layout: where elements lie is chosen for the operators that read them."""
