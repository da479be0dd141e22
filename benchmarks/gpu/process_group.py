"""Ends a process with all that it has begun.

Nothing but Python is needed: `benchmarks.gpu_all` runs on bare machines.
"""

import contextlib
import os
import signal
import subprocess


def end_group(child: subprocess.Popen) -> None:
  """Kills a child and every process of its group, and waits for the child.

  Also where the child has ended: a compiler that it left would hold the GPU.

  Args:
    child: begun with `start_new_session=True`, so that its group is its own.
  """
  with contextlib.suppress(ProcessLookupError):
    os.killpg(child.pid, signal.SIGKILL)
  child.wait()
