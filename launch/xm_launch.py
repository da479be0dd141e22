"""Runs a sweep by XManager: `genrec sweep --backend=xm`, as it likes scripts.

    python launch/xm_launch.py quickstart:smoke --workdir=ROOT --set seed=0..3
    xmanager launch launch/xm_launch.py -- quickstart:smoke --workdir=ROOT
        --set seed=0..3
    python launch/xm_launch.py CONFIG --workdir=ROOT --sweep=NAME
        --xm_executor=vertex --xm_workdir=/gcs/BUCKET/DIR --xm_gpu=a100=8

Behind `xmanager launch FILE --`, the config (or ROOT) comes first: XManager
reads flags up to the first word that is none, and knows only its own.
`pip install 'genrec_jax[xm]'` brings it; docs/launching.md explains it all.
"""

import contextlib
import sys
from collections.abc import Sequence

from absl import flags

from genrec_jax.sweep import __main__ as sweep

# `xmanager launch` leaves what stands behind the first word to us.
flags.FLAGS.set_gnu_getopt(False)
with contextlib.suppress(ImportError):  # --backend=xm says what is missing
  from xmanager import xm  # noqa: F401, defines what `xmanager launch` sets


def main(argv: Sequence[str]) -> None:
  """Runs the command line, of which the first word is the program."""
  sweep.run([*argv[1:], '--backend=xm'])


if __name__ == '__main__':
  main(sys.argv)
