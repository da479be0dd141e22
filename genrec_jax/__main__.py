"""`genrec`, which pip installs, and `python -m genrec_jax`.

A Ctrl-C must be understood from the first moment on, so that nothing else is
imported before the signals are.
"""

import sys

from genrec_jax import interruption


def run() -> None:
  """Runs the command line."""
  interruption.install()
  # `python -m` finds extensions where the user is, and so does `genrec`; behind
  # all else, so that no file there hides a library.
  sys.path.append('')
  from genrec_jax import main

  main.run()


if __name__ == '__main__':
  run()
