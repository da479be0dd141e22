"""Index arithmetic between packed and padded sequences."""
