"""Runs many variants of a config: the same as `genrec sweep`.

    python launch/sweep.py CONFIG --workdir=ROOT --set seed=0..3
    python launch/sweep.py ROOT --collect

`--help` shows the flags; docs/launching.md explains them.
"""

from genrec_jax.sweep import __main__ as sweep

if __name__ == '__main__':
  sweep.run()
