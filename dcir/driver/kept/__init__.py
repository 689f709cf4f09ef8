"""Traces that outlive their process: what is kept of a program, where, and when it is used."""
