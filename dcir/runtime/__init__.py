"""Running what was compiled: libraries, arenas, pointer tables and calls back into torch."""
