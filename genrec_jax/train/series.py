"""Several runs in one workdir, made of one config: the parts of `genrec search`
and `genrec learn_hash`.
"""

import contextlib
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from genrec_jax import config as config_lib
from genrec_jax import sealed
from genrec_jax.checkpoint.workdir import lock_workdir
from genrec_jax.checkpoint.workdir_files import SERIES, list_traces
from genrec_jax.parallel import job
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.report.metric_writers import restore_numbers
from genrec_jax.tasks.ranking_metrics import DIRECTIONS
from genrec_jax.train import loop
from genrec_jax.train.monitor import parse_monitor

T = TypeVar('T')
# Sections that say how runs are made of a config, and that no run reads.
_OF_SERIES = ('hash', 'search')
# Settings with which a series may go on: where runs lie, and what is written of
# them. Their length is none, since those that have ended are not trained again.
_FREE = (
  'checkpoint', 'parallel', 'compile_cache', 'predict', 'report', 'data.cache'
)  # fmt: skip
# What is drawn and trained when a supernet, or all maps, have been trained.
_LATER = (
  'hash.compare',
  *(
    f'search.{name}'
    for name in ('samples', 'proposals', 'rates', 'seed', 'compare')
  ),
)


@contextlib.contextmanager
def take_workdir(workdir: pathlib.Path, config, command: str) -> Iterator[None]:
  """Holds the directory of a series, which has these settings.

  Args:
    workdir: where all of it lies.
    config: of the experiment.
    command: which makes the series.

  Raises:
    ConfigError: the directory was begun with other settings, by another
      command, or is that of a run.
  """
  with contextlib.ExitStack() as stack:
    with job.fail_together('taking the workdir'):
      if job.is_leader():
        stack.enter_context(lock_workdir(workdir))
        _keep_settings(workdir, config, command)
    yield


def _keep_settings(workdir: pathlib.Path, config, command: str) -> None:
  """Refuses to go on with other settings than the workdir has begun with."""
  path, mark = workdir / 'config.json', workdir / SERIES
  if mark.exists():
    of = _read_mark(mark)
    if of != command:
      raise config_lib.ConfigError(
        f'{workdir} is the directory of `genrec {of}`: take another workdir '
        f'for `genrec {command}`'
      )
  elif traces := list_traces(workdir):
    raise config_lib.ConfigError(
      f'{workdir} holds {traces[0]} of a run: take another workdir for '
      f'`genrec {command}`'
    )
  # Settings that were refused have left nothing that others would go on with.
  begun = [x for x in workdir.iterdir() if x.is_dir() and list_traces(x)]
  if begun and not path.exists():
    raise config_lib.ConfigError(
      f'{workdir} holds runs ({begun[0].name}) but no config.json, so that '
      'nobody knows of which settings they are: take another workdir'
    )
  if begun:
    saved = config_lib.read_config(path)
    changed = config_lib.describe_differences(
      saved, config, (*_FREE, *_LATER), placement=False
    )
    if changed:
      raise config_lib.ConfigError(
        f'{workdir} was begun with other settings: {"; ".join(changed)}. Take '
        'another workdir for these'
      )
  config_lib.save(config, path)
  # Before any run, so that nobody takes the directory for that of a run.
  replace_file(workdir / SERIES, json.dumps({'command': command}))


def _read_mark(path: pathlib.Path) -> str:
  """The command that makes the series of a workdir."""
  try:
    return str(json.loads(path.read_text())['command'])
  except (ValueError, KeyError, TypeError):
    raise config_lib.ConfigError(
      f'{path} is damaged, which says what the directory is of: remove it if '
      'there is nothing beside it, or take another workdir'
    ) from None


def train_once(config, folder, kinds, extensions) -> dict | None:
  """The report of a run, trained unless it has ended; None if stopped.

  Args:
    config: of the run.
    folder: of the run.
    kinds: the kinds of tasks there are.
    extensions: what is used from outside the library.

  Raises:
    ConfigError: the run that has ended there has other settings.
  """
  report = read_report(folder)
  if report is not None:
    saved = report.get('config') or {}
    changed = saved and config_lib.describe_differences(
      saved, config, (*_FREE, *_LATER), placement=False
    )
    if changed:
      raise config_lib.ConfigError(
        f'{folder} holds a run with other settings: {"; ".join(changed)}. '
        'Remove it, and the same command trains it again'
      )
    return report
  return loop.train_and_evaluate(config, folder, kinds, extensions)


def read_report(folder: pathlib.Path) -> dict | None:
  """The report of a run; None where there is none.

  Args:
    folder: of the run.

  Raises:
    ValueError: it is not as it was written.
  """
  path, found = folder / 'report.json', ''
  with job.fail_together('reading the report of a run'):
    if job.is_leader() and path.exists():
      files = sealed.open_file(
        path, 'remove it; the same command writes it again and trains no step'
      )
      found = json.dumps(files.read_json(path.name, metrics=dict))
  found = job.broadcast_from_leader(found)
  return restore_numbers(json.loads(found)) if found else None


def choose_best(trials: Mapping[T, Mapping], config) -> T:
  """The run that validates best; the first where nothing validates.

  Args:
    trials: run -> split -> its metrics.
    config: of the experiment, whose monitor counts.
  """
  valid = {run: metrics.get('valid') for run, metrics in trials.items()}
  if len(valid) == 1 or not all(valid.values()):
    return next(iter(valid))
  monitor = parse_monitor(
    config.train.monitor, list(next(iter(valid.values()))), DIRECTIONS
  )

  def score(run) -> float:
    value = monitor.measure(valid[run])
    return monitor.score(value) if math.isfinite(value) else -math.inf

  return max(valid, key=score)


def change_config(config, **fields):
  """A copy with other values, and the sections of series as by default.

  Args:
    config: of the experiment.
    **fields: 'section.key' -> value.
  """
  changed = config.copy_and_resolve_references()
  with changed.unlocked():
    for name in _OF_SERIES:
      changed[name] = config_lib.ranking()[name]
    for key, value in fields.items():
      section, _, name = key.rpartition('.')
      (changed[section] if section else changed)[name] = value
  return changed.lock()


def change_tables(
  config, tables: Sequence[str], changes: Mapping[str, Mapping], **fields
):
  """As `change_config`, with other settings of some tables.

  Args:
    config: of the experiment.
    tables: all there are.
    changes: table -> settings, in addition to those that `config.tables` has.
    **fields: 'section.key' -> value.
  """
  entries = list(config.tables) or [('.*', {})]
  own, decides = [], set()
  for name in tables:
    number, given = next(
      (i, dict(given))
      for i, (pattern, given) in enumerate(entries)
      if re.fullmatch(pattern, name)
    )
    if name in changes:
      own.append((re.escape(name), given | dict(changes[name])))
    else:
      decides.add(number)
  # An entry that decides nothing any more would be refused.
  kept = [entries[number] for number in sorted(decides)]
  if not own:
    return change_config(config, **fields)
  return change_config(config, tables=(*own, *kept), **fields)
