"""Tasks: representations -> loss and predictions."""
