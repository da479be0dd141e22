"""`genrec`, which pip installs, and `python -m genrec_jax`.

A Ctrl-C must be understood from the first moment on, so that nothing else is
imported before the signals are.
"""

from genrec_jax import interruption


def run() -> None:
  """Runs the command line."""
  interruption.install()
  from genrec_jax import main

  main.run()


if __name__ == '__main__':
  run()
