"""State -> named numbers, of one part of the data."""
