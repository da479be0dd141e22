"""The data of a run that ranks candidates: users, events and requests.

Shuffled, the requests of the training split come in an order of their own in
every epoch. As a stream they come step by step: a step is learned from, and the
next one is evaluated, whole, before anything of it is learned. The split of
requests that come next is called 'next'. The requests between training and
test, which are the split 'valid' where there are any, are not learned from;
they and the test are measured once, with the weights of the end of training.
"""

import dataclasses
import functools
import logging
import pathlib
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from genrec_jax.config import ConfigError, request_models
from genrec_jax.contracts import Extensions
from genrec_jax.data.capacities import SizedBatches
from genrec_jax.data.requests import (
  batches,
  prepared,
  request_files,
  request_order,
)
from genrec_jax.data.requests.requests import (
  RequestDataset,
  Requests,
  keep_oldest,
)
from genrec_jax.data.requests.stochastic_length import StochasticLength
from genrec_jax.evaluators.requests import RequestEvaluator
from genrec_jax.features import CANDIDATES
from genrec_jax.parallel import job
from genrec_jax.tasks.request_ranking import RequestRanking

LOG = logging.getLogger('genrec_jax')
_MORE_REQUESTS = (
  'raise data.streaming.activity, data.streaming.users or data.streaming.steps'
)
# Candidates of a mean item that each item is given beside its own, so that the
# share of a label of rare items is not taken at its word.
PRIOR = 10.0
LEAST_RATE = 1e-6  # a share keeps away from 0 and 1 by this


@dataclasses.dataclass(frozen=True)
class RequestData:
  """Requests, in splits.

  Attributes:
    dataset: users, events and requests.
    config: the whole config of the run.
  """

  dataset: RequestDataset
  config: object
  takes_extensions: ClassVar[bool] = True

  @classmethod
  def load(
    cls,
    config,
    workdir,
    log: Callable[[str], None] = print,
    extensions: Extensions | None = None,
  ):
    """Reads (or finds converted) what `config.data` names."""
    own_sets = extensions.request_sets if extensions else {}
    cache = config.data.cache or pathlib.Path(workdir) / 'data'
    # Only one process converts; the others then find what it has made.
    with job.fail_together('reading the data', lead_first=True):
      dataset = prepared.load(config.data, cache, log, own_sets)
    log(dataset.summary())
    if 'train' not in dataset.splits:  # which readers of files refuse
      raise ConfigError(
        f'{dataset.name}: there is no request to train on, for no user takes '
        f'part in a step of training: {_MORE_REQUESTS}'
      )
    if config.data.order == 'stream' and dataset.splits['train'].step is None:
      raise ConfigError(
        f"data.order='stream' takes requests step by step, and {dataset.name} "
        "has no steps; set data.order='shuffled'"
      )
    data = cls(dataset, config)
    data._check_end()
    for sentence in data._list_warnings():
      LOG.warning('%s', sentence)
    data._describe_between(log)
    return data

  def _list_warnings(self) -> list[str]:
    """What of the evaluations that are asked for cannot be, and the remedy."""
    return [
      *self._warn_of_labels(),
      *self._warn_of_context(),
      *self._find_test(),
    ]

  def _warn_of_labels(self) -> list[str]:
    """Labels of which there is nothing to learn."""
    train, found = self.dataset.splits['train'], []
    for label in self.dataset.spec.labels:
      values = train.labels[label.name]
      if label.kind != 'binary' or not len(values) or np.ptp(values):
        continue
      some = 'all candidates' if values[0] else 'no candidate'
      found.append(
        f'{some} of training {"have" if values[0] else "has"} the label '
        f'{label.name!r}, and nothing can be learned of it; look at what the '
        'data call it'
      )
    if train.weight is not None and not train.weight.any():
      found.append('all candidates of training have the weight 0')
    return found

  def _warn_of_context(self) -> list[str]:
    """How often the context of a request does not count."""
    model, train = self.config.model, self.splits['train']
    reader = model if model.name == 'stu' else model.history
    if not self.dataset.spec.context:
      return []
    events = train.end - self.dataset.events.offsets[train.user]
    events = np.minimum(events, self.config.data.max_history)
    share = np.mean(events < reader.min_context_events) if len(events) else 0
    if share < 0.5:
      return []
    key = 'model' if model.name == 'stu' else 'model.history'
    return [
      f'{share:.0%} of the requests of training have fewer events than '
      f'{key}.min_context_events={reader.min_context_events}, and nothing is '
      'learned from their context; lower it if that is not meant'
    ]

  def _find_test(self) -> list[str]:
    """Why there is no test split, where one is asked for."""
    if 'test' in self.dataset.splits or 'test' not in self.config.eval.splits:
      return []
    stream = self.config.data.streaming
    if stream.train_steps == stream.steps:
      why = (
        f'data.streaming.train_steps is {stream.train_steps}, as many as '
        'data.streaming.steps: lower it, or raise steps'
      )
    else:
      why = f'nobody takes part in a step of inference: {_MORE_REQUESTS}'
    return [f'there is no test split, and no metric of it; {why}']

  def _describe_between(self, log: Callable[[str], None]) -> None:
    """Says what becomes of the requests between training and test."""
    between = self.dataset.splits.get('valid')
    if not self._streams or not between:
      return
    measured = 'and measured once, at the end'
    if 'valid' not in self.config.eval.splits:
      measured = "nor measured (eval.splits has no 'valid')"
    log(
      f'the {len(between):,} requests of the split valid are not learned from, '
      f'{measured}'
    )

  def _check_end(self) -> None:
    """Refuses to measure a step of a stream of which a part is learned."""
    steps, splits = self.config.train.steps, self.config.eval.splits
    if not (steps and splits and self._streams):
      return
    ends = sorted(self.step_ends.values())
    if steps not in ends:
      raise ConfigError(
        f'train.steps is {steps}, and the steps of the stream end after '
        f'{", ".join(map(str, ends[:8]))}{" ..." * (len(ends) > 8)} batches; '
        'take one of these numbers, or 0 for the whole stream'
      )

  @property
  def _streams(self) -> bool:
    return self.config.data.order == 'stream'

  @property
  def _order(self) -> str:
    is_given = not self.config.train.shuffle
    return 'given' if is_given else self.config.data.order

  @functools.cached_property
  def splits(self) -> dict[str, Requests]:
    """By name, with the histories that are read."""
    splits = dict(self.dataset.splits)
    if request_models.reads_oldest(self.config.model):
      most = self.config.data.max_history
      splits = {
        name: keep_oldest(self.dataset.events, requests, most)
        for name, requests in splits.items()
      }
    if self._streams:
      splits['next'] = splits['train']
    return splits

  @functools.cached_property
  def step_ends(self) -> dict[int, int]:
    """Step of the stream -> batches that end with it."""
    train = self.dataset.splits['train']
    return request_order.find_step_ends(train, self.config.train.batch_size)

  def find_next_step(self, batch: int) -> int | None:
    """The step of the stream that follows so many batches; None at its end."""
    for step, end in self.step_ends.items():
      if end > batch:
        return step
    return None

  def task(
    self, config, extensions: Extensions | None = None
  ) -> RequestRanking:
    return RequestRanking.from_config(config, self.dataset.spec, extensions)

  def steps_per_epoch(self, batch_size: int) -> int:
    return request_order.steps_per_epoch(
      self.dataset.splits['train'], batch_size, self._order
    )

  def list_evaluation_steps(self) -> frozenset[int] | None:
    """The ends of the steps of a stream; None where there is none."""
    if not self._streams:
      return None
    return frozenset([0, *self.step_ends.values()])

  def train_batches(self, config, runtime, stop, log):
    del stop  # the requests are all there
    data, train = config.data, self.splits['train']
    cutting = data.stochastic_length
    options = dict(
      batch_size=config.train.batch_size,
      seed=config.seed,
      order=self._order,
      stochastic=StochasticLength(cutting.alpha, cutting.selector)
      if cutting.alpha
      else None,
      shards=runtime.shards,
      **self._limits,
    )
    capacities = batches.choose_capacities(
      self.dataset, train, data.token_capacities, **options
    )
    made = batches.train_batches(
      self.dataset,
      train,
      own=runtime.local_shards,
      capacities=capacities,
      **options,
    )
    if capacities is None:
      return made
    log(capacities.describe())
    return SizedBatches(made, capacities)

  @property
  def _limits(self) -> dict[str, int]:
    data = self.config.data
    return dict(
      max_history=data.max_history, max_candidates=data.max_candidates
    )

  def summary(self) -> str:
    return self.dataset.summary()

  def describe_splits(self) -> tuple[dict, list[str]]:
    """Counts for report.json, and what to warn of; see `train.results`."""
    counts = {
      name: {
        'examples': requests.candidates,
        'requests': len(requests),
        'users': len(np.unique(requests.user)),
      }
      for name, requests in self.dataset.splits.items()
    }
    return counts, self._list_warnings()

  def evaluator(self, task, split: str, config, runtime) -> RequestEvaluator:
    """What measures a split; `config` is the `eval` section."""
    requests, is_next = self.splits[split], split == 'next'

    def make_batches(shards, own, step):
      return batches.eval_batches(
        self.dataset,
        requests,
        batch_size=config.batch_size + -config.batch_size % shards,
        step=self.find_next_step(step) if is_next else None,
        shards=shards,
        own=own,
        **self._limits,
      )

    def is_due(step: int) -> bool:
      at_end = self.find_next_step(step) is None
      return at_end != is_next

    more = {}
    if self._streams:
      more = dict(is_due=is_due, chooses=False, steps=requests.step)
    return RequestEvaluator(task, make_batches, runtime, swings=is_next, **more)

  def baseline(self):
    """The share of each label among an item's candidates in training."""
    outputs_of = self._make_item_rates()
    return 'popularity', lambda evaluator: evaluator.constant(outputs_of)

  def _make_item_rates(self):
    spec, train = self.dataset.spec, self.dataset.splits['train']
    item = spec.items[0]
    weight = train.weight
    weight = np.ones(train.candidates) if weight is None else weight
    total = np.bincount(train.items[item.name], weight, item.rows)
    columns = []
    for label in spec.labels:
      values = train.labels[label.name].astype(np.float64) * weight
      mean = values.sum() / max(total.sum(), 1e-9)
      sums = np.bincount(train.items[item.name], values, item.rows)
      rate = (sums + PRIOR * mean) / (total + PRIOR)
      if label.kind == 'binary':
        rate = np.clip(rate, LEAST_RATE, 1 - LEAST_RATE)
        rate = np.log(rate) - np.log1p(-rate)
      columns.append(rate)
    table = np.stack(columns, axis=-1).astype(np.float32)
    return lambda batch: table[batch.jagged[CANDIDATES][item.name]]

  def save_for_predicting(self, workdir) -> None:
    """Leaves in the workdir what predicting needs of the data."""
    path = pathlib.Path(workdir) / 'requests'
    request_files.save_for_predicting(self.dataset, path)

  def read_fingerprint(self, workdir) -> str:
    """Fingerprint of the data that the workdir was trained on."""
    return request_files.read_fingerprint(pathlib.Path(workdir) / 'requests')

  def fingerprint(self) -> str:
    """Names the data, so that a run does not go on with other data."""
    return self.dataset.fingerprint()
