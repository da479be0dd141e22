"""Item ids -> rows of a table, and the optimizers that write rows back."""
