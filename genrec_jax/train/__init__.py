"""The training loop: data, steps, evaluations, checkpoints, results."""
