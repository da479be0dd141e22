"""Metrics of a stream whose examples are scored before they are learned from.

Of constant memory, but for the groups of one window, and with a state that a
checkpoint holds: a run that is continued goes on with the same numbers.
"""

import base64
import dataclasses
import math
import zlib
from collections.abc import Sequence

import numpy as np

from genrec_jax.tasks import ranking_metrics
from genrec_jax.tasks.ranking_metrics import (
  BinnedAuc,
  GroupedAuc,
  LabelMetrics,
  WeightedMeans,
)
from genrec_jax.tasks.ranking_metrics.auc import USUAL_LEVEL

WAITING = 1 << 16  # examples that are gathered before they are binned
_FORMER_ZERO = 1 << 15  # the bin of zero in the states of earlier versions


class Progressive:
  """Windowed and lifetime metrics.

    progressive = Progressive(('click',), lifetime=True)
    progressive.update(logits, labels, weights, group)  # of each batch
    progressive.metrics()  # at each log line: ends the window

  AUC is that of bins (`ranking_metrics.BinnedAuc`); 'auc_max_error' says how
  far it may be off. gAUC compares examples of a group within one window, in the
  lifetime one too: the mean of the windows, weighted by their examples.
  """

  def __init__(self, labels: Sequence[str], *, lifetime: bool = False):
    """Starts with nothing seen.

    Args:
      labels: names of the L labels.
      lifetime: `metrics` tells of all since the start, too.
    """
    self._labels, self._lifetime = tuple(labels), lifetime
    self._grouped = False  # whether groups were ever told
    self._reset_window()
    fresh = LabelMetrics(BinnedAuc())
    self._whole = [fresh] * len(self._labels)
    self._whole_groups = np.zeros((len(self._labels), 2))

  def update(self, logits, labels, weights, group=None) -> None:
    """Takes a batch.

    Args:
      logits: `[N, L]`, predicted before the batch is learned from.
      labels: `[N, L]`.
      weights: `[N]`, 0 for padding.
      group: `[N]`, or None where there are no groups.
    """
    weights = np.asarray(weights)
    real = weights > 0
    columns = [np.asarray(x)[real] for x in (logits, labels, weights)]
    if group is not None:
      self._grouped = True
      columns.append(np.asarray(group)[real])
    # Batch by batch: how sums are rounded must not depend on when the state
    # was asked for.
    for i, means in enumerate(self._means):
      self._means[i] = means.update(
        columns[0][:, i], columns[1][:, i], columns[2]
      )
    self._waiting.append(columns)
    if sum(len(c[2]) for c in self._waiting) >= WAITING:
      self._bin_waiting()

  def metrics(self) -> dict[str, float]:
    """The metrics of the window, which ends; {} if it is empty.

    Returns:
      'auc', 'auc_max_error', 'gauc' (with groups), 'logloss', 'ne',
      'calibration', of several labels as `ranking_metrics.of_labels` names
      them; and with `lifetime` the same since the start as 'lifetime_auc' and
      so on.
    """
    self._bin_waiting()
    if not self._means[0].weight:
      return {}
    windows = [
      LabelMetrics(*parts)
      for parts in zip(self._binned, self._means, strict=True)
    ]
    grouped = self._of_groups()
    named = self._name_metrics(windows, grouped)
    if self._lifetime:
      self._whole = [
        a.merge(b) for a, b in zip(self._whole, windows, strict=True)
      ]
      self._whole_groups += grouped
      of_all = self._name_metrics(self._whole, self._whole_groups)
      named |= {f'lifetime_{name}': value for name, value in of_all.items()}
    self._reset_window()
    return named

  def state(self) -> dict:
    """All of it as what JSON can say."""
    self._bin_waiting()
    groups = [
      np.concatenate(c) for c in zip(*self._groups, strict=True)
    ]  # fmt: skip
    return {
      'labels': list(self._labels),
      'grouped': self._grouped,
      'window': [
        _state_of(LabelMetrics(*parts))
        for parts in zip(self._binned, self._means, strict=True)
      ],
      'groups': [_text_of(c) for c in groups],
      'lifetime': [_state_of(m) for m in self._whole],
      'lifetime_groups': self._whole_groups.tolist(),
    }

  def restore(self, state: dict) -> None:
    """Continues from a `state`."""
    if tuple(state['labels']) != self._labels:
      raise ValueError(
        f'the progressive metrics saved are of the labels {state["labels"]}, '
        f'not of {list(self._labels)}; use another --workdir'
      )
    windows = [_metrics_of(x) for x in state['window']]
    self._grouped = state['grouped']
    self._reset_window()
    self._binned = [m.auc for m in windows]
    self._means = [m.means for m in windows]
    if state['groups']:
      self._groups = [[_array_of(text) for text in state['groups']]]
    self._whole = [_metrics_of(x) for x in state['lifetime']]
    self._whole_groups = np.array(state['lifetime_groups'])

  def _reset_window(self) -> None:
    count = len(self._labels)
    self._means, self._binned = [WeightedMeans()] * count, [BinnedAuc()] * count
    self._waiting, self._groups = [], []

  def _bin_waiting(self) -> None:
    if not self._waiting:
      return
    columns = [np.concatenate(c) for c in zip(*self._waiting, strict=True)]
    logits, labels, weights = columns[:3]
    for i, binned in enumerate(self._binned):
      self._binned[i] = binned.update(logits[:, i], labels[:, i], weights)
    if self._grouped:
      self._groups.append(columns)
    self._waiting = []

  def _of_groups(self) -> np.ndarray:
    """The sums of gAUC over the window, `[L, 2]`."""
    if not self._groups:
      return np.zeros((len(self._labels), 2))
    logits, labels, weights, group = map(
      np.concatenate, zip(*self._groups, strict=True)
    )
    return np.array(
      [
        GroupedAuc().update(logits[:, i], labels[:, i], weights, group).sums()
        for i in range(len(self._labels))
      ]
    )

  def _name_metrics(self, metrics, grouped) -> dict[str, float]:
    results = {}
    for label, m, (total, weight) in zip(
      self._labels, metrics, grouped, strict=True
    ):
      result = m.result()
      areas = {'auc': result.pop('auc'), 'auc_max_error': m.auc.error()}
      if self._grouped:
        areas['gauc'] = float(total / weight) if weight else math.nan
      results[label] = areas | result
    return ranking_metrics.of_labels(results)


def _state_of(metrics: LabelMetrics) -> dict:
  bins = {name: _text_of(x) for name, x in vars(metrics.auc).items()}
  return {'means': dataclasses.asdict(metrics.means), **bins}


def _metrics_of(state: dict) -> LabelMetrics:
  columns = {
    name: _array_of(text) for name, text in state.items() if name != 'means'
  }
  if 'bins' in columns:  # as earlier versions cut them, whatever the scores
    number = columns.pop('bins').astype(np.int64) - _FORMER_ZERO
    columns['start'] = number << USUAL_LEVEL
    columns['level'] = np.full(len(number), USUAL_LEVEL)
  return LabelMetrics(BinnedAuc(**columns), WeightedMeans(**state['means']))


def _text_of(array: np.ndarray) -> list:
  """An array as [type, shape, text], to the bit."""
  data = zlib.compress(np.ascontiguousarray(array).tobytes(), 1)
  return [array.dtype.str, list(array.shape), base64.b64encode(data).decode()]


def _array_of(said: list) -> np.ndarray:
  dtype, shape, text = said
  data = zlib.decompress(base64.b64decode(text))
  return np.frombuffer(data, dtype).reshape(shape)
