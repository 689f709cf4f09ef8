"""Sizes that change from call to call: a program for every combination, and batches in pieces of a few sizes."""
