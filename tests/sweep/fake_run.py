"""Behaves as a run of `genrec_jax.main` does, within milliseconds of a start.

It knows the keys `seed`, `optimizer.learning_rate` (its metric), `train.steps`
and `data.path`, which says how it ends: 'fails', 'once' (fails once), 'dies'
(kills itself), 'eats' (memory), 'silent' (no report).
"""

import json
import os
import pathlib
import signal
import sys
import time


def main() -> None:
  flags = dict(word.removeprefix('--').split('=', 1) for word in sys.argv[1:])
  keys = {
    name.removeprefix('config.'): value
    for name, value in flags.items()
    if name.startswith('config.')
  }
  workdir = pathlib.Path(flags['workdir'])
  workdir.mkdir(parents=True, exist_ok=True)
  how, steps = keys.get('data.path', ''), int(keys.get('train.steps', 4))
  if how == 'fails' or how == 'once' and not (workdir / 'tried').exists():
    (workdir / 'tried').touch()
    print('error: the file has no column "user"')
    sys.exit(1)
  stopped = []
  signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
  (workdir / 'checkpoints').mkdir(exist_ok=True)
  at = workdir / 'checkpoints' / 'step'
  # Empty while another process of the same run writes it.
  first = int(at.read_text() or 0) if at.exists() else 0
  with open(workdir / 'starts', 'a') as file:
    file.write(f'{first} {os.getpid()} {os.environ.get("NPROC", "")}\n')
  value = float(keys.get('optimizer.learning_rate', 0.1))
  for step in range(first, steps):
    if stopped:
      sys.exit(75)
    if how == 'dies' and step == 2:
      os.kill(os.getpid(), signal.SIGKILL)
    if how == 'eats':
      eaten = bytearray(300 << 20)
      eaten[::4096] = b'x' * len(eaten[::4096])
    time.sleep(float(os.environ.get('FAKE_STEP_S', '0.02')))
    with open(workdir / 'metrics.jsonl', 'a') as file:
      row = {'step': step + 1, 'valid/ndcg@10': value * (1 + step)}
      file.write(json.dumps(row) + '\n')
    at.write_text(str(step + 1))
    print(f'step {step + 1}/{steps} · 3.0s left · batch loss 0.5 · 9 steps/s')
    sys.stdout.flush()
  if how == 'silent':
    return
  best = {'ndcg@10': value * steps}
  report = {
    'metrics': {'valid': best, 'test': {'ndcg@10': value}},
    'last_epoch': {'valid': best},
    'best_step': steps,
    'core_s': 0.5,
    'wall_s': 1.0,
    'directions': {'ndcg': 'higher'},
  }
  (workdir / 'report.json').write_text(json.dumps(report))


if __name__ == '__main__':
  main()
