"""Processes that a launcher starts, watches and stops; without JAX."""
