"""A trained model that scores candidates for a user with a history."""

import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.config import request_models
from genrec_jax.contracts import EvalRuntime, Extensions, Task, weights_of
from genrec_jax.data import fields, pipeline
from genrec_jax.data.quoting import escape, list_names, quote
from genrec_jax.data.ranking import annotations, raw
from genrec_jax.data.requests import batches, request_files
from genrec_jax.data.requests.feature_values import read_values
from genrec_jax.data.requests.requests import (
  EventStore,
  RequestDataset,
  Requests,
  keep_oldest,
)
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.features import ACTION, CANDIDATES, WATCH_TIME, Features
from genrec_jax.parallel import collectives
from genrec_jax.serve.weights import Weights, load_weights
from genrec_jax.tasks.request_ranking import RequestRanking

LOG = logging.getLogger('genrec_jax')
TIME = 'time'  # column of a history
_LONGEST_AGE = np.iinfo(np.int32).max
Table = Mapping[str, Sequence] | Sequence[Mapping]
_LATEST = 100_000_000_000  # seconds: beyond the year 5000 units are mixed up


class RequestScorer:
  """A model with its vocabularies; needs the workdir, not the data.

  scorer = RequestScorer.load('/tmp/run')
  scorer.score(
    history={'item': [12, 7], 'action': ['liked', 'seen'], 'time': [90, 95]},
    candidates={'item': [3, 9]}, user=7, time=120,
  )

  Attributes:
    spec: what requests hold, a `features.RequestSpec`.
    labels: name of each label.
    values: feature -> `FeatureValues`.
    step: training step of the weights.
    task: whose model scores.
    weights: what its compiled functions take.
    runtime: where the weights lie.
    reads_oldest: whether the oldest events of a long history are read.
  """

  def __init__(
    self,
    task: RequestRanking,
    weights: Weights,
    encoding: request_files.RequestEncoding,
    config,
    extensions: Extensions | None = None,
    runtime: EvalRuntime | None = None,
  ):
    """Puts the pieces together; `load` is the usual way."""
    self.spec, self.labels, self.step = task.spec, task.labels, weights.step
    self.values = read_values(task.spec, encoding.vocabs)
    self.vocabs = encoding.vocabs
    self._encoding, self.task = encoding, task
    self._batch_size = config.eval.batch_size
    self.reads_oldest = request_models.reads_oldest(config.model)
    self._limits = dict(
      max_history=task.max_history, max_candidates=task.max_candidates
    )
    self.weights = weights_of(weights)
    self.runtime = runtime or SingleDeviceEvalRuntime.of(extensions)

  @classmethod
  def load(
    cls,
    workdir: str | os.PathLike,
    config=None,
    checkpoint: str = 'best',
    extensions: Extensions | None = None,
    make_runtime: Callable[[Task], EvalRuntime] | None = None,
  ) -> 'RequestScorer':
    """Loads what a training left in its workdir.

    Args:
      workdir: of the run.
      config: a config of the workdir; None takes the one that is saved there.
      checkpoint: 'best' (by validation; the latest where there is none) or
        'latest'.
      extensions: what is used from outside the library.
      make_runtime: of a task; where its weights shall lie. None is one device.
    """
    workdir = pathlib.Path(workdir)
    if config is None:
      config = ConfigDict(config_lib.read_config(workdir / 'config.json'))
    encoding = request_files.open_for_predicting(
      workdir / 'requests',
      f'`genrec train --workdir={workdir}` writes it again from the data, and '
      'trains no step twice',
    )
    task = RequestRanking.from_config(config, encoding.spec, extensions)
    runtime = make_runtime and make_runtime(task)
    weights = load_weights(
      workdir, task, checkpoint, extensions, runtime, config.numerics.rows
    )
    LOG.info('weights of step %d', weights.step)
    return cls(task, weights, encoding, config, extensions, runtime)

  def score(
    self,
    history: Table,
    candidates: Table,
    *,
    user: str | int | None = None,
    time: float | str | None = None,
    context: Mapping[str, object] | None = None,
  ) -> np.ndarray:
    """Scores of N candidates, `[N, L]` float32.

    The score of a binary label is its probability, that of another one the
    number that is predicted.

    Args:
      history: what the user did, the latest last: columns by name, a DataFrame
        or a mapping for each event. It has the features of items, 'action' (a
        name, a list of names, or the sum of their bits) where there are
        actions, 'time' (seconds or ISO dates) where ages tell something, and
        'watch_time' where there is one. An empty one is possible.
      candidates: the features of items, and those that candidates alone have,
        in the same form.
      user: as the data name the user; None or an unknown one has the context
        of somebody unknown.
      time: when is asked, at the last event or later; None is the time of the
        last event.
      context: feature -> its value, None for one that is not known; one of
        several slots has a name for each, see `RequestSpec.context_columns`. It
        has all that belong to a request, and may have those of the user, in
        place of what the data know of this one.
    """
    dataset, requests = self.encode(history, candidates, user, time, context)
    asked = requests.candidates
    if not asked:
      return np.zeros((0, len(self.labels)), np.float32)
    # A few sizes, so that a service compiles a few programs.
    chunks = -(-asked // self._limits['max_candidates'])
    size = min(1 << (chunks - 1).bit_length(), self._batch_size)
    scores = self.score_requests(dataset, requests, batch_size=size)
    return np.concatenate(list(scores))

  def encode(
    self,
    history: Table,
    candidates: Table,
    user: str | int | None = None,
    time: float | str | None = None,
    context: Mapping[str, object] | None = None,
  ) -> tuple[RequestDataset, Requests]:
    """One request in rows of the tables; arguments as in `score`."""
    # No column of the data is called like one of these, see `RequestSpec`.
    items, asking = self.spec.items, self.spec.candidate_features
    columns = [f.name for f in items]
    columns += [ACTION] if self.spec.actions else []
    columns += [TIME] if self.spec.timed else []
    columns += [WATCH_TIME] if self.spec.watch_time else []
    past = _read_table(history, columns, 'history')
    asked = _read_table(candidates, [f.name for f in asking], CANDIDATES)
    known = self.find_context(user, context)
    times, moment = None, None
    if self.spec.timed:
      times = _read_times(past)
      moment = times[-1] if len(times) else np.int64(0)
      if time is not None:
        moment = _read_moment(time, times[-1:])
      most = self._limits['max_history']
      check_ages(times[:most] if self.reads_oldest else times[-most:], moment)
    elif time is not None:
      raise ValueError(
        f'time is {quote(str(time))}, and the data of this model have no times '
        'that it could be compared with; leave time out'
      )
    count = len(past)
    dataset = RequestDataset(
      name='one request',
      spec=self.spec,
      events=EventStore(
        np.array([0, count]),
        self._encode_items(past, items, 'history'),
        self._read_actions(past),
        times,
        _read_seconds(past) if self.spec.watch_time else None,
      ),
      context=known,
      splits={},
      vocabs=self._encoding.vocabs,
      user_ids=np.zeros(1, np.int64),
    )
    requests = Requests(
      user=np.zeros(1, np.int32),
      end=np.array([count]),
      offsets=np.array([0, len(asked)]),
      items=self._encode_items(asked, asking, CANDIDATES),
      labels={},
      time=None if moment is None else np.array([moment]),
    )
    return dataset, requests

  def score_requests(
    self,
    dataset: RequestDataset,
    requests: Requests,
    *,
    batch_size: int | None = None,
    room: tuple[int, int] | None = None,
  ) -> Iterator[np.ndarray]:
    """The same of each candidate of requests, batch by batch, in their order.

    Args:
      dataset: the events, in rows of these tables.
      requests: the requests; they need no labels.
      batch_size: examples at a time; None is `eval.batch_size`.
      room: (events, candidates) of a batch; None asks `find_room`.
    """
    shards = self.runtime.eval_shards
    size = batch_size or self._batch_size
    size += -size % shards
    if self.reads_oldest:
      most = self._limits['max_history']
      requests = keep_oldest(dataset.events, requests, most)
    made = batches.eval_batches(
      dataset,
      requests,
      batch_size=size,
      capacity=room or self.find_room(dataset, requests, size),
      shards=shards,
      own=self.runtime.local_eval_shards,
      **self._limits,
    )
    for batch in made:
      batch = self.runtime.put_on_devices(batch)
      answer = self._compiled_scorer(self.weights, batch)
      scores, is_candidate = jax.device_get(answer)
      scores = scores[is_candidate]
      if not np.all(np.isfinite(scores)):
        raise FloatingPointError('the model scores some candidates NaN')
      yield scores

  def find_room(
    self,
    dataset: RequestDataset,
    requests: Requests,
    batch_size: int | None = None,
  ) -> tuple[int, int]:
    """Events and candidates of a shard, from a ladder of few sizes."""
    share = -(-(batch_size or self._batch_size) // self.runtime.eval_shards)
    room = batches.choose_room(dataset, requests, share, **self._limits)
    return tuple(map(pipeline.capacity_for, room))

  def find_context(
    self,
    user: str | int | None = None,
    context: Mapping[str, object] | None = None,
  ) -> dict:
    """Column of the context -> `[1]` int32.

    Args:
      user: as in `score`.
      context: as in `score`.
    """
    given = self._encode_context({} if context is None else context)
    encoding, known = self._encoding, []
    if user is not None:
      known = encoding.users.encode(np.array([_name_user(user)]))
    row = known[0] if len(known) else 0
    return {
      name: encoding.context[name][row - 1 : row]
      if row
      else np.array([self.values[name].unknown_row], np.int32)
      for name in self.spec.context_columns
      if name not in given
    } | given

  def _encode_context(self, context: Mapping) -> dict[str, np.ndarray]:
    """The same of what is given."""
    if not isinstance(context, Mapping):
      raise ValueError(
        f'context is a {type(context).__name__}; give a mapping of names to '
        'values'
      )
    names = list(self.spec.context_columns)
    for name in context:
      if name not in names:
        raise ValueError(
          f'context has {quote(str(name))}, which is no feature of it; those '
          f'are {list_names(names) or "none"}'
        )
    for name in names:
      if name not in context and name not in self._encoding.context:
        raise ValueError(
          f'context has no {name!r}, which every request has; give '
          f'context={{{name!r}: VALUE}}, and None where it is not known'
        )
    chunk = _read_table([context], list(context), 'context')
    return {
      name: self.values[name].encode(_list_texts(chunk, name, 'context'))[0]
      for name in context
    }

  def _encode_items(
    self, chunk: raw.RawChunk, features: Features, what: str
  ) -> dict[str, np.ndarray]:
    """Feature of items -> `[N]` rows; other features than the id may lack."""
    rows = {}
    for number, feature in enumerate(features):
      texts = _list_texts(chunk, feature.name, what)
      if not number and '' in texts:
        raise ValueError(
          f'{what}, {chunk.where(texts.index(""))}: there is no '
          f'{feature.name!r}; give one, or leave the row out'
        )
      rows[feature.name], _ = self.values[feature.name].encode(texts)
    return rows

  def _read_actions(self, chunk: raw.RawChunk) -> np.ndarray:
    """`[N]` int32 bits."""
    bits = np.zeros(len(chunk), np.int32)
    if not self.spec.actions:
      return bits
    known = dict(self.spec.actions)
    every = sum(known.values())
    column = chunk.columns[ACTION]
    lists = isinstance(column, raw.ListColumn)
    words = column.values if lists else column
    lengths = column.lengths if lists else np.ones(len(chunk), int)
    row = np.repeat(np.arange(len(chunk)), lengths)
    for at, word in zip(row.tolist(), words, strict=True):
      bit = known.get(word, int(word) if word.isdecimal() else -1)
      if bit < 0 or bit & ~every:
        raise ValueError(
          f'history, {chunk.where(at)}: {quote(word)} is no action; give '
          f'{", ".join(known)}, or the sum of their bits'
        )
      bits[at] |= bit
    return bits

  @functools.cached_property
  def _compiled_scorer(self):
    # Of a function that knew `self`, the weights would outlive their user.
    task, runtime = self.task, self.runtime
    is_binary = jnp.array([x.kind == 'binary' for x in self.spec.labels])

    def score_batch(weights, batch):
      reads = task.reads_for('predict', batch)
      params, rows = runtime.read_rows(task, weights, reads)
      outputs = task.predict(params, rows, batch)
      scores = jnp.where(is_binary[None], jax.nn.sigmoid(outputs), outputs)
      used = jnp.sum(batch.jagged[CANDIDATES].lengths)
      return collectives.gather((scores, jnp.arange(len(scores)) < used))

    return runtime.jit(score_batch, ('split',), 'alike')


def _read_table(table: Table, names: Sequence[str], what: str) -> raw.RawChunk:
  has_columns = isinstance(table, Mapping) or hasattr(table, 'columns')
  try:
    if has_columns:
      return raw.from_columns(table, names)
    return raw.from_records(_list_records(table, what), names)
  except ValueError as e:
    raise ValueError(f'{what}: {e}') from None


def _list_records(table: Sequence[Mapping], what: str) -> list[Mapping]:
  """The rows of what should be a mapping for each."""
  wanted = 'give columns by name, a DataFrame, or a list of a mapping a row'
  if isinstance(table, str | bytes) or not np.iterable(table):
    raise ValueError(f'what is given is a {type(table).__name__}; {wanted}')
  records = list(table)
  for i, record in enumerate(records):
    # Rows of a DataFrame are no mappings, but have keys.
    if not isinstance(record, Mapping) and not hasattr(record, 'keys'):
      raise ValueError(
        f'row {i} is a {type(record).__name__}, not a mapping of names to '
        f'values; {wanted}'
      )
  return records


def _name_user(user: str | int) -> str:
  if isinstance(user, str):
    return user
  is_number = isinstance(user, int | float | np.integer | np.floating)
  if isinstance(user, bool) or not (is_number and user % 1 == 0):
    raise ValueError(
      f'user is {escape(quote(user))}; give one user as the data name users, a '
      'text or a whole number, or None for somebody unknown'
    )
  return str(int(user))


def _list_texts(chunk: raw.RawChunk, name: str, what: str) -> list[str]:
  column = chunk.columns[name]
  if isinstance(column, raw.ListColumn):
    raise ValueError(
      f'{what}: {name!r} holds lists; give one value in each row'
    )
  return list(column)


def _read_times(chunk: raw.RawChunk) -> np.ndarray:
  """`[N]` int64 seconds of a history."""
  times, good = annotations.parse_exact_times(chunk, TIME, 'the time')
  if not good.all():
    at = int(np.argmin(good))
    raise ValueError(
      f'history, {chunk.quote_cell(at, TIME, chunk.columns[TIME][at])} is no '
      'time; give seconds since 1970 or an ISO date'
    )
  seconds = times.seconds
  if len(seconds) and seconds.max() > _LATEST:
    at = int(np.argmax(seconds))
    raise ValueError(
      f'history, {chunk.where(at)}: {seconds[at]:,} seconds after 1970 is '
      'thousands of years from now; if it is in milliseconds, give seconds'
    )
  early = np.flatnonzero(np.diff(seconds) < 0)
  if len(early):
    raise ValueError(
      f'history, {chunk.where(int(early[0]) + 1)}: the event is earlier than '
      'the one before it; sort the history by time'
    )
  return seconds


def _read_moment(time: float | str, last: np.ndarray) -> np.int64:
  """Seconds of a request after a history; `last` is its last time, if any."""
  kinds = str | int | float | np.integer | np.floating
  shown = f'a {type(time).__name__}'
  if isinstance(time, kinds) and not isinstance(time, bool):
    shown = quote(str(time))
    chunk = raw.from_columns({TIME: [time]}, [TIME])
    times, good = annotations.parse_exact_times(chunk, TIME, 'the time')
    if good.all() and (times.seconds >= last).all():
      return times.seconds[0]
  after = (
    f', at or after the last event of the history, which is at {last[0]}'
    if len(last)
    else ''
  )
  raise ValueError(
    f'time is {shown}; give seconds since 1970 or a text with an ISO date'
    f'{after}'
  )


def check_ages(times: np.ndarray, moment: np.int64) -> None:
  """Refuses a request so long after its history that ages have no room."""
  if len(times) and moment - times[0] > _LONGEST_AGE:
    raise ValueError(
      f'the request is at {moment:,}, {moment - times[0]:,} seconds after an '
      'event of the history; is the time in milliseconds? give seconds'
    )


def _read_seconds(chunk: raw.RawChunk) -> np.ndarray:
  """`[N]` float32 watch times."""
  words = [word or '0' for word in _list_texts(chunk, WATCH_TIME, 'history')]
  seconds, good = fields.parse_ratings(words)
  good &= seconds >= 0
  if not good.all():
    bad = int(np.argmin(good))
    raise ValueError(
      f'history, {chunk.where(bad)}: the watch time is {quote(words[bad])}, '
      'must be finite and not negative; give 0 for one that is not known'
    )
  return seconds.astype(np.float32)
