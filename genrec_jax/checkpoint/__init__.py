"""Checkpoints: asynchronous, verified, never loaded when damaged."""
