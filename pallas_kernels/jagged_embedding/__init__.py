"""Lookup in tables of rows, and updates of the rows a step has read."""
