"""A trained ranking model that says how likely a click is."""

import functools
import logging
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax.config import tower_file
from genrec_jax.config.loading import quote_value
from genrec_jax.contracts import EvalRuntime, Extensions, Task, weights_of
from genrec_jax.data.ranking import collation, raw
from genrec_jax.data.ranking.encoder import Encoder
from genrec_jax.data.ranking.saved_encoder import load_encoder
from genrec_jax.data.ranking.value_shares import FeatureCounts
from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.parallel import collectives
from genrec_jax.serve.input_watch import InputWatch
from genrec_jax.serve.weights import Weights, load_weights
from genrec_jax.tasks.ranking import Ranking

LOG = logging.getLogger('genrec_jax')


class Scorer:
  """A model with its vocabularies; needs the workdir, not the data.

  scorer = Scorer.load('/tmp/run')
  scorer.score([{'user': '7', 'item': '12', 'price': 3.5}])

  Attributes:
    encoder: turns the features of raw rows into rows of tables; labels and
      other columns of them are not read.
    labels: name of each label.
    step: training step of the weights.
    batching: `batch_size`, `shards` and `own` of the batches that are scored.
  """

  def __init__(
    self,
    task,
    weights: Weights,
    encoder: Encoder,
    config,
    extensions=None,
    runtime: EvalRuntime | None = None,
  ):
    """Puts the pieces together; `load` is the usual way."""
    self.encoder, self.labels = encoder.features_only, task.labels
    self.step = weights.step
    self._correction = encoder.schema.annotations.logit_correction
    self._task, self._weights = task, weights_of(weights)
    runtime = runtime or SingleDeviceEvalRuntime.of(extensions)
    size, shards = config.eval.batch_size, runtime.eval_shards
    self._runtime = runtime
    self.batching = dict(
      batch_size=size + -size % shards,
      shards=shards,
      own=runtime.local_eval_shards,
    )
    self._watch = InputWatch(encoder)
    self._row_formats = config.numerics.rows
    self._extensions = extensions

  @classmethod
  def load(
    cls,
    workdir: str | os.PathLike,
    config=None,
    checkpoint: str | int = 'best',
    extensions: Extensions | None = None,
    make_runtime: Callable[[Task], EvalRuntime] | None = None,
  ) -> 'Scorer':
    """Loads what a training left in its workdir.

    Args:
      workdir: of the run.
      config: a config of the workdir; None takes the one that is saved there.
      checkpoint: 'best' (by validation; the latest where there is none),
        'latest', or the number of a step in WORKDIR/checkpoints.
      extensions: what is used from outside the library.
      make_runtime: of a task; where its weights shall lie. None is one device.
    """
    workdir = pathlib.Path(workdir)
    if config is None:
      config = ConfigDict(config_lib.read_config(workdir / 'config.json'))
    if 'search' in config and config.search.supernet:
      raise config_lib.ConfigError(
        f'{workdir} is a supernet, all models of a search at once: take one '
        "that was trained from scratch, beside it in 'candidates'"
      )
    encoder = load_encoder(workdir)
    task = Ranking.from_config(
      config,
      encoder.features,
      encoder.schema.labels,
      extensions,
      towers=tower_file.read_run_towers(workdir, config),
    )
    runtime = make_runtime and make_runtime(task)
    weights = load_weights(
      workdir, task, checkpoint, extensions, runtime, config.numerics.rows
    )
    LOG.info('weights of step %d', weights.step)
    return cls(task, weights, encoder, config, extensions, runtime)

  def use_step(self, workdir: str | os.PathLike, step: int) -> None:
    """Scores with other weights of the same run from now on.

    Args:
      workdir: of the run.
      step: of a checkpoint in WORKDIR/checkpoints.
    """
    weights = load_weights(
      workdir,
      self._task,
      step,
      self._extensions,
      self._runtime,
      self._row_formats,
    )
    # What is compiled takes them as an argument.
    self.step, self._weights = weights.step, weights_of(weights)

  def score(self, rows: Sequence[Mapping] | Mapping[str, Any]) -> np.ndarray:
    """Probability of each label, `[N, L]` float32.

    Args:
      rows: column -> value, each; lists for multi_hot and sequence features,
        None for what is missing. Or the columns by name, or a DataFrame.
    """
    chunk = self._read(rows)
    none = np.zeros((0, len(self.labels)), np.float32)
    return np.concatenate([none, *self.score_chunks([chunk][: len(chunk)])])

  def weigh_events(
    self, rows: Sequence[Mapping] | Mapping[str, Any]
  ) -> np.ndarray:
    """Weight of each event of histories by each head, `[N, J, T]` float32.

    The latest event is in the last place; places without an event have 0. Of
    models that weigh events by products with a candidate, such as 'tbsm'.

    Args:
      rows: as `score` takes them.
    """
    chunk = self._read(rows)
    if not len(chunk):  # one row of nothing says what shape an answer has
      nothing = dict.fromkeys(self.encoder.schema.sources)
      return self.weigh_events([nothing])[:0]
    batches = collation.raw_batches(self.encoder, [chunk], **self.batching)
    found = []
    for batch in batches:
      batch = self._runtime.put_on_devices(batch)
      answer = self._compiled_weigher(self._weights, batch)
      weights, is_example = jax.device_get(answer)
      found.append(weights[is_example])
    return np.concatenate(found)

  def _read(self, rows) -> raw.RawChunk:
    if isinstance(rows, (str, os.PathLike)):
      raise ValueError(
        f'{quote_value(str(rows))} is a path; a Scorer wants rows: read the '
        'file first, into a DataFrame say, or score it by --mode=predict'
      )
    has_columns = isinstance(rows, Mapping) or hasattr(rows, 'columns')
    read = raw.from_columns if has_columns else raw.from_records
    return read(rows, self.encoder.schema.sources)

  @property
  def values(self) -> dict[str, FeatureCounts]:
    """Feature -> how many values it was given, missing and unseen ones."""
    return self._watch.counts()

  def score_chunks(self, chunks, tally=None) -> Iterator[np.ndarray]:
    """The same of `data.ranking.raw.RawChunk`s, batch by batch, in order.

    Args:
      chunks: the rows.
      tally: a `value_tally.Tally` that counts their values; None counts them in
        `values`, and warns.
    """
    return self.score_batches(
      collation.raw_batches(
        self.encoder,
        chunks,
        tally=self._watch if tally is None else tally,
        **self.batching,
      )
    )

  def score_batches(self, batches) -> Iterator[np.ndarray]:
    """The same of batches of `Examples`, made as `batching` says."""
    for batch in batches:
      batch = self._runtime.put_on_devices(batch)
      answer = self._compiled_scorer(self._weights, batch)
      probabilities, is_example = jax.device_get(answer)
      probabilities = probabilities[is_example]
      if not np.all(np.isfinite(probabilities)):
        raise FloatingPointError('the model scores some examples NaN')
      yield probabilities

  @functools.cached_property
  def _compiled_scorer(self):
    # Of a function that knew `self`, the weights would outlive their user.
    task, runtime, correction = self._task, self._runtime, self._correction

    def score_batch(weights, batch):
      reads = task.reads_for('predict', batch)
      params, rows = runtime.read_rows(task, weights, reads)
      logits = task.predict(params, rows, batch)
      if correction:
        logits += correction
      return collectives.gather((jax.nn.sigmoid(logits), batch.weights > 0))

    return runtime.jit(score_batch, ('split',), 'alike')

  @functools.cached_property
  def _compiled_weigher(self):
    task, runtime = self._task, self._runtime

    def weigh_batch(weights, batch):
      reads = task.reads_for('predict', batch)
      params, rows = runtime.read_rows(task, weights, reads)
      found = task.weigh_events(params, rows, batch)
      return collectives.gather((found, batch.weights > 0))

    return runtime.jit(weigh_batch, ('split',), 'alike')
