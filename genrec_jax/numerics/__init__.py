"""Precision: numbers in fewer bits."""
