"""Many variants of one experiment: started, watched, collected.

Nothing here imports JAX, which would take the devices from the runs.
"""
