"""Runs of `genrec_jax.main`: started in a process of their own, and read."""

import json
import os
import pathlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.processes import children
from genrec_jax.sweep import record

ROOT = pathlib.Path(__file__).parent.parent


def train(
  config: str,
  workdir: pathlib.Path,
  overrides: Sequence[str] = (),
  env: Mapping[str, str] | None = None,
) -> None:
  """Trains to the end, continuing what the workdir holds.

  Args:
    config: 'configs/FILE.py:variant', below the checkout.
    workdir: directory of the run; its log goes to `<workdir>.log`.
    overrides: 'a.b=value' each.
    env: variables added to ours.
  """
  start(ROOT, config, workdir, overrides, env=env)


def start(
  checkout: pathlib.Path,
  config: str,
  workdir: pathlib.Path,
  overrides: Sequence[str] = (),
  *,
  mode: str = 'train',
  env: Mapping[str, str] | None = None,
) -> None:
  """Runs `python -m genrec_jax.main` with the code of a checkout, to the end.

  Args:
    checkout: directory with the package and its configs.
    config: 'configs/FILE.py:variant', below the checkout.
    workdir: directory of the run; its log goes to `<workdir>.log`.
    overrides: 'a.b=value' each.
    mode: 'train', 'eval' or 'predict'.
    env: variables added to ours.

  Raises:
    RuntimeError: it failed; the message has the command and names the log.
  """
  workdir.parent.mkdir(parents=True, exist_ok=True)
  log = workdir.with_name(workdir.name + '.log')
  words = record.list_words(config, workdir.resolve(), overrides)
  command = children.command_of([f'--mode={mode}', *words])
  with open(log, 'a') as f:
    done = subprocess.run(
      command,
      cwd=checkout,
      env={**os.environ, 'PYTHONPATH': str(checkout), **(env or {})},
      stdout=f,
      stderr=subprocess.STDOUT,
    )
  if done.returncode:
    raise RuntimeError(f'{" ".join(command)} failed, see {log}')


def train_once(
  config: str,
  workdir: pathlib.Path,
  overrides: Sequence[str] = (),
  env: Mapping[str, str] | None = None,
) -> dict:
  """The report of a run, trained as by `train` unless it has ended."""
  if not ended(workdir):
    train(config, workdir, overrides, env)
  return read_report(workdir)


def ended(workdir: pathlib.Path) -> bool:
  return (workdir / 'report.json').exists()


def over_seeds(key: str, values: Sequence[float]) -> dict[str, float]:
  """{key: mean, key_std: deviation with n - 1}, the latter of two or more."""
  found = {key: float(np.mean(values))}
  if len(values) > 1:
    found[f'{key}_std'] = float(np.std(values, ddof=1))
  return found


def mean_difference(key: str, values: Sequence[float]) -> dict[str, float]:
  """The mean of differences between runs, and its standard error.

  >>> mean_difference('minus', [0.25, 0.75])
  {'minus': 0.5, 'minus_se': 0.25}
  """
  found = {key: float(np.mean(values))}
  if len(values) > 1:
    error = np.std(values, ddof=1) / len(values) ** 0.5
    found[f'{key}_se'] = float(error)
  return found


def group_by_seed(rows: Iterable[Mapping]) -> dict[str, dict[int, Mapping]]:
  """Rows of single runs as {row['of']: {row['seed']: row}}."""
  found: dict[str, dict[int, Mapping]] = {}
  for row in rows:
    found.setdefault(row['of'], {})[row['seed']] = row
  return found


def read_report(workdir: pathlib.Path) -> dict:
  """The report.json of a finished run."""
  path = workdir / 'report.json'
  if not path.exists():
    raise FileNotFoundError(
      f'{path}: not there; the run has not ended, or this is not a workdir'
    )
  return json.loads(path.read_text())


def evaluations(workdir: pathlib.Path, part: str = 'test') -> list[dict]:
  """The lines of metrics.jsonl that evaluate a part, oldest first.

  Each is {'step': 48, 'hr@10': ...}: the part's name is taken off.
  """
  found = []
  for line in (workdir / 'metrics.jsonl').read_text().splitlines():
    row = json.loads(line)
    prefix = f'{part}/'
    values = {
      key.removeprefix(prefix): value
      for key, value in row.items()
      if key.startswith(prefix)
    }
    if values:
      found.append({'step': row['step'], **values})
  return found


def differences(report: Mapping, config: str) -> list[str]:
  """Keys in which a run differs from its config file, data and seed aside."""
  now = config_lib.load(str(ROOT / config))
  ignored = ('seed', 'data', 'predict', 'report', 'train.keep_checkpoints')
  return config_lib.describe_differences(report['config'], now, ignored)


def named(text: str) -> tuple[str, pathlib.Path]:
  """'NAME=WORKDIR' of a command line."""
  name, equals, workdir = text.partition('=')
  if not (name and equals and workdir):
    raise ValueError(f'--run takes NAME=WORKDIR, not {text!r}')
  return name, pathlib.Path(workdir)
