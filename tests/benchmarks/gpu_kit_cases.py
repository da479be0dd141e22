"""A module of cases as those of `benchmarks/gpu`, of every kind of end."""

import os
import pathlib
import subprocess
import sys
import time

from benchmarks.gpu import kit


def cases(args) -> list[dict]:
  del args
  ends = ('good', 'raises', 'dies', 'hangs', 'good again')
  return [dict(case=end) for end in ends]


def work(case: dict, args) -> dict:
  del args
  if case['case'] == 'raises':
    raise ValueError('no such kernel')
  if case['case'] == 'dies':
    if path := os.environ.get('GPU_KIT_LEFT'):
      sleep = [sys.executable, '-c', 'import time; time.sleep(60)']
      left = subprocess.Popen(sleep, stdout=subprocess.DEVNULL)
      pathlib.Path(path).write_text(str(left.pid))
    os._exit(7)
  if case['case'] == 'hangs':
    if path := os.environ.get('GPU_KIT_PID'):
      pathlib.Path(path).write_text(str(os.getpid()))
    time.sleep(60)
  return dict(ms=1.0, tflops=2.0, device='NVIDIA H100 80GB HBM3')


if __name__ == '__main__':
  kit.main('tests.benchmarks.gpu_kit_cases', __doc__, cases, work, limit=2)
