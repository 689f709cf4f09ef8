"""How many threads each kernel of a graph gets, and which run side by side: widths, scaling curves, list schedules, plans as data."""
