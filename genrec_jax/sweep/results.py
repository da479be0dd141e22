"""What is known of the runs of a sweep, however far they are."""

import collections
import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Iterable, Mapping, Sequence

from genrec_jax import sealed
from genrec_jax.formatting import is_finite
from genrec_jax.processes import children, notes
from genrec_jax.sweep import curves, run_states
from genrec_jax.sweep.curves import Curve
from genrec_jax.sweep.record import Sweep
from genrec_jax.sweep.variants import Variant, list_varied
from genrec_jax.train.monitor import Monitor

_MOST_BYTES = 1 << 28
SEEDS = (
  'seed',
  'data.seed',
  'data.synthetic.seed',
  'data.clicks.seed',
  'data.drift.seed',
)


@dataclasses.dataclass(frozen=True)
class Result:
  """What is known of a run.

  Attributes:
    variant: which it is.
    state: one of `notes.STATES`.
    note: of the launcher.
    keys: key that varies -> its value; a number where its text is one.
    curve: what was monitored so far.
    best: 'split/metric' -> value at the best step, of a run that goes on at
      its best evaluation so far.
    last: the same at the last evaluation.
    report: report.json of a run that is done, without its pictures.
    best_step: of `best`.
    lines: the last lines that a run has printed which failed.
  """

  variant: Variant
  state: str
  note: notes.Note
  keys: Mapping[str, object]
  curve: Curve
  best: Mapping[str, float]
  last: Mapping[str, float]
  report: Mapping
  best_step: int | None = None
  lines: Sequence[str] = ()

  def cost(self, name: str) -> float | None:
    """What a run has cost.

    'wall_s' and 'core_s' are those of its process and of all its tries, as the
    launcher has seen them, whether the run is done or not; a report knows of
    its own process alone. It counts where there is no launcher's note.
    """
    value = None
    if name in ('wall_s', 'core_s'):
      value = getattr(self.note, name) or None
    if value is None:
      value = self.report.get(name)
    return value if is_finite(value) else None


@dataclasses.dataclass(frozen=True)
class Collection:
  """All runs of a sweep.

  Attributes:
    sweep: which.
    results: by number.
    keys: those that vary.
    monitor: says which value is better; None while nothing is measured.
    metric: what is monitored, 'valid/auc', or '' for a sum of several.
  """

  sweep: Sweep
  results: tuple[Result, ...]
  keys: tuple[str, ...]
  monitor: Monitor | None
  metric: str

  def value(self, result: Result) -> float | None:
    """What a run is judged by."""
    if self.monitor is None:
      return None
    split = {
      name.partition('/')[2]: value
      for name, value in result.best.items()
      if name.startswith(f'{curves.SPLIT}/')
    }
    try:
      value = self.monitor.measure(split)
    except KeyError:
      return None
    return value if math.isfinite(value) else None

  def rank(self) -> list[Result]:
    """The runs with a value, the best first."""
    measured = [r for r in self.results if self.value(r) is not None]
    return sorted(
      measured, key=lambda r: self.monitor.score(self.value(r)), reverse=True
    )

  def count_states(self) -> dict[str, int]:
    """State -> how many runs are in it, of states that some are in."""
    counts = collections.Counter(r.state for r in self.results)
    return {state: counts[state] for state in notes.STATES if counts[state]}

  def metrics(self) -> list[str]:
    """'split/metric' of all that was measured, what is monitored first."""
    names = dict.fromkeys(
      name for result in self.results for name in result.best
    )
    order = {'valid': 0, 'test': 1}
    monitored = self.metric.partition('/')[2]

    def rank_name(name: str) -> tuple:
      split, _, metric = name.partition('/')
      return metric != monitored, order.get(split, 2)

    return sorted(names, key=rank_name)


def read_results(sweep: Sweep) -> Collection:
  """Reads the files of all runs."""
  keys = tuple(list_varied(sweep.variants))
  results = tuple(_read_result(sweep, variant) for variant in sweep.variants)
  metrics, directions = {}, {}
  for result in results:
    directions |= result.report.get('directions') or {}
    for metric, value in result.best.items():
      if metric.startswith(f'{curves.SPLIT}/'):
        metrics[metric.partition('/')[2]] = value
  monitor = None
  if metrics:
    monitor = curves.make_monitor(sweep.find_monitor(), metrics, directions)
  metric = ''
  if monitor and len(monitor.weights) == 1:
    metric = f'{curves.SPLIT}/{next(iter(monitor.weights))}'
  return Collection(sweep, results, keys, monitor, metric)


def _read_result(sweep: Sweep, variant: Variant) -> Result:
  state, note = run_states.find_state(sweep, variant)
  workdir = sweep.workdir(variant)
  reader = curves.CurveReader(
    workdir / 'metrics.jsonl', sweep.find_monitor(variant)
  )
  curve = reader.read()
  report = read_report(workdir / 'report.json') if state == notes.DONE else {}
  if report:
    best = _flatten_splits(report.get('metrics'))
    last = _flatten_splits(report.get('last_epoch')) or best
    step = report.get('best_step')
  else:
    at = reader.monitor and curve.find_best(reader.monitor)
    best = {} if at is None else _name_split(curve.metrics[at])
    step = None if at is None else curve.steps[at]
    last = _name_split(curve.metrics[-1]) if curve.metrics else {}
  lines = ()
  if state == notes.FAILED:
    lines = tuple(children.read_last_lines(sweep.log(variant)))
  keys = {key: read_value(text) for key, text in variant.overrides}
  step = step if isinstance(step, int) else None
  return Result(
    variant, state, note, keys, curve, best, last, report, step, lines
  )


def read_report(path: pathlib.Path) -> dict:
  """A report.json without what is large; {} where it cannot be read."""
  try:
    report = json.loads(sealed.read_regular(path, _MOST_BYTES))
  except (OSError, *sealed.UNREADABLE):
    return {}
  if not isinstance(report, dict):
    return {}
  large = ('users', 'ranking', 'values', 'requests', 'run', 'config')
  return {name: x for name, x in report.items() if name not in large}


def read_value(text: str) -> object:
  """A number where a text is one.

  >>> read_value('1e-3'), read_value('8'), read_value('auto'), read_value('nan')
  (0.001, 8, 'auto', 'nan')
  """
  for kind in (int, float):
    try:
      value = kind(text)
    except ValueError:
      continue
    if math.isfinite(value):
      return value
  return text


def group_seeds(found: Collection) -> list[tuple[dict, list[Result]]]:
  """(keys but for seeds, runs) of settings that ran with several seeds."""
  groups: dict[tuple, list[Result]] = {}
  for result in found.results:
    key = tuple((k, v) for k, v in result.keys.items() if k not in SEEDS)
    groups.setdefault(key, []).append(result)
  if not set(found.keys) & set(SEEDS):
    return []
  return [(dict(key), runs) for key, runs in groups.items()]


def mean_and_deviation(values: Iterable[float]) -> tuple[float, float] | None:
  """The mean, and the deviation with n - 1 (NaN for one value)."""
  values = [v for v in values if is_finite(v)]
  if not values:
    return None
  spread = statistics.stdev(values) if len(values) > 1 else math.nan
  return statistics.fmean(values), spread


def _flatten_splits(splits) -> dict[str, float]:
  found = {}
  for split, metrics in (splits or {}).items():
    for name, value in (metrics or {}).items():
      if isinstance(value, int | float) and not isinstance(value, bool):
        found[f'{split}/{name}'] = value
  return found


def _name_split(metrics: Mapping[str, float]) -> dict[str, float]:
  return {f'{curves.SPLIT}/{name}': value for name, value in metrics.items()}
