"""Ranking of the candidates of a request, by the history of its user.

Histories, candidates and context read rows of their tables; a model turns them
into one output for each candidate and label. The loss of a binary label is
cross entropy, that of any other number the squared error. What requests hold
is said by `features.RequestSpec`.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

import pallas_kernels
from genrec_jax.config import TableSettings
from genrec_jax.config.losses import RequestLossConfig
from genrec_jax.contracts import Extensions
from genrec_jax.features import (
  CANDIDATES,
  HISTORY,
  PAD,
  UNREAD,
  WEIGHT,
  Examples,
  ExpectedRead,
  Read,
  RequestSpec,
  TableSpec,
)
from genrec_jax.models.request_models import RequestModel
from genrec_jax.numerics.products import (
  Product,
  Rules,
  assign_products,
  find_sites,
)
from genrec_jax.tasks import losses
from genrec_jax.tasks.settings import task_settings


class Scored(NamedTuple):
  """The candidates of a batch, one by one.

  Attributes:
    outputs: `[K, L]` float32, a logit or a number for each label.
    labels: `[K, L]` float32.
    weights: `[K]` float32, 0 for padding.
    group: `[K]` int32 the user's number, -1 for padding.
    request: `[K]` int32 the request's number in its split, -1 for padding.
  """

  outputs: jax.Array
  labels: jax.Array
  weights: jax.Array
  group: jax.Array
  request: jax.Array


class RequestRanking:
  """The task 'request_ranking', a `contracts.Task`.

  Attributes:
    spec: what requests hold.
    labels: name of each label.
    sites: name -> `Site` of each weight that activations are multiplied with.
  """

  progress_unit = 'tokens'  # of histories and candidates
  example_unit = 'requests'  # the candidates are what is measured

  def __init__(
    self,
    model_name: str,
    model: dict,
    loss: dict,
    *,
    spec: RequestSpec,
    max_history: int,
    max_candidates: int,
    table_update: str = 'row_adagrad',
    table_dtype: str = 'float32',
    init_std: float = 0.02,
    settings: TableSettings = TableSettings(),
    policy: Rules = (),
    extra_products: Mapping[str, Product] | None = None,
  ):
    """Checks that the parts fit together.

    Args:
      model_name: one of `models.request_models.NAMES`.
      model: fields of the model's `Config`.
      loss: fields of `RequestLossConfig`.
      spec: what requests hold.
      max_history: most events of a history.
      max_candidates: most candidates of a request.
      table_update: 'dense', or the name of a row optimizer.
      table_dtype: of the tables' rows.
      init_std: deviation of the tables' initialiser.
      settings: of some tables, in place of these three.
      policy: (regex of a weight, product) pairs, see `numerics.products`.
      extra_products: further products by name.
    """
    self._model = RequestModel.from_fields(
      model_name, model, max_history=max_history, max_candidates=max_candidates
    )
    self.model_name, self.model_config = model_name, self._model.config
    self.pooled = self._model.pooled
    self.loss_config = RequestLossConfig(**loss)
    self.spec = spec
    self.max_history, self.max_candidates = max_history, max_candidates
    self.labels = tuple(label.name for label in spec.labels)
    self.measurements = dict.fromkeys(
      ('loss', *(f'loss/{name}' for name in self.labels))
      if len(self.labels) > 1
      else ('loss',),
      'mean',
    )
    weights = self.loss_config.task_weights or (1.0,) * len(self.labels)
    if len(weights) != len(self.labels):
      raise ValueError(
        f'loss.task_weights has {len(weights)} numbers for '
        f'{len(self.labels)} labels ({", ".join(self.labels)})'
      )
    self._task_weights = tuple(weights)
    self.policy, self._extra_products = tuple(policy), extra_products
    model = nnx.eval_shape(self._build_model)
    self.graphdef, self.sites = nnx.graphdef(model), find_sites(model)
    self._wanted = model.list_reads()
    self._tables = {}
    for read in self._wanted.values():
      about = read.rows, read.width, init_std, table_update, table_dtype
      spec = settings(TableSpec(read.table, *about))
      if self._tables.setdefault(read.table, spec) != spec:
        raise ValueError(
          f'features that share table {read.table!r} must have as many rows, '
          'and vectors of one width'
        )

  @classmethod
  def from_config(
    cls, config, spec: RequestSpec, extensions: Extensions | None = None
  ) -> 'RequestRanking':
    """The task that a config describes.

    Args:
      config: of the experiment.
      spec: what requests hold.
      extensions: what is used from outside the library.
    """
    model = config.model.to_dict()
    if model.get('towers'):
      raise ValueError(
        f"model.towers is {model['towers']!r}, and models of requests stand on "
        "no towers: leave the key out, or choose a config with task='ranking'"
      )
    return cls(
      model.pop('name'),
      model,
      config.loss.to_dict(),
      spec=spec,
      max_history=config.data.max_history,
      max_candidates=config.data.max_candidates,
      **task_settings(config, extensions),
    )

  def _build_model(self, key=None) -> nnx.Module:
    rngs = nnx.Rngs(0 if key is None else key)
    model = self._model.build(self.spec, rngs)
    return assign_products(model, self.policy, self._extra_products)

  def tables(self) -> dict[str, TableSpec]:
    return self._tables

  def init(self, key: jax.Array) -> dict:
    """Fresh parameters of the model, a plain nested dict."""
    return nnx.to_pure_dict(nnx.state(self._build_model(key), nnx.Param))

  def count(self, batch: Examples) -> tuple[jax.Array, jax.Array]:
    """(events and candidates, requests) of a batch, padding left out."""
    tokens = sum(batch.jagged[x].lengths.sum() for x in (HISTORY, CANDIDATES))
    return tokens, (batch.weights > 0).sum()

  def reads(self, batch: Examples, key=None) -> dict[str, Read]:
    """What the loss of a batch reads of each table."""
    del key
    return self.reads_for('predict', batch)

  def reads_for(self, purpose: str, batch: Examples) -> dict[str, Read]:
    """What is read outside of training: the same."""
    del purpose
    reads = {}
    for name, read in self._wanted.items():
      if read.part in (HISTORY, CANDIDATES):
        tokens = batch.jagged[read.part]
        ids = tokens[read.column]
        segment = pallas_kernels.segment_ids(tokens.lengths, ids.shape[0])
        real = segment < tokens.lengths.shape[0]
      else:
        ids, real = batch.ids[read.column], batch.weights > 0
        if self.spec.context_columns[read.column].pooled:
          real &= ids > PAD  # a slot that is not used
      reads[name] = Read(jnp.where(real, ids, UNREAD), read.table)
    return reads

  def expected_reads(self) -> dict[str, ExpectedRead]:
    """Reads of the longest request there may be."""
    most = {HISTORY: self.max_history, CANDIDATES: self.max_candidates}
    return {
      name: ExpectedRead(read.table, most.get(read.part, 1))
      for name, read in self._wanted.items()
    }

  def predict(self, params, rows, batch: Examples, key=None) -> jax.Array:
    """Output of each label for each candidate, `[K, L]` float32.

    Args:
      params: the model's parameters.
      rows: a view of each feature that `reads` announced.
      batch: the requests.
      key: for dropout, while training.
    """
    state = nnx.State(jax.tree.map(nnx.Param, params))
    model = nnx.merge(self.graphdef, state)
    vectors = {name: rows[name].all() for name in self._wanted}
    outputs = model(vectors, batch, key, train=key is not None)
    columns = [outputs[name].astype(jnp.float32) for name in self.labels]
    return jnp.stack(columns, axis=-1)

  def score(self, params, rows, batch: Examples, key=None) -> Scored:
    """`predict`, with what came of the candidates."""
    outputs = self.predict(params, rows, batch, key)
    candidates = batch.jagged[CANDIDATES]
    segment = pallas_kernels.segment_ids(candidates.lengths, len(outputs))

    def spread(column, fill):
      return column.at[segment].get(mode='fill', fill_value=fill)

    real = segment < len(candidates.lengths)
    return Scored(
      outputs,
      candidates.floats.select(self.labels),
      jnp.where(real, candidates[WEIGHT], 0.0),
      spread(batch.group, -1),
      spread(batch.row, -1),
    )

  @property
  def binary_labels(self) -> tuple[str, ...]:
    """The labels of `score_labels`."""
    return tuple(x.name for x in self.spec.labels if x.kind == 'binary')

  def score_labels(self, params, rows, batch: Examples):
    """(logits, labels, weights, group) of `score`, of binary labels."""
    scored = self.score(params, rows, batch)
    binary = jnp.array(
      [i for i, x in enumerate(self.spec.labels) if x.kind == 'binary'], int
    )
    outputs, labels = scored.outputs[:, binary], scored.labels[:, binary]
    return outputs, labels, scored.weights, scored.group

  def loss(self, params, rows, batch: Examples, key: jax.Array):
    """Sum of the candidates' losses, and their weight.

    Args:
      params: the model's parameters.
      rows: a view of each feature that `reads` announced.
      batch: the requests, of one shard and microbatch.
      key: random key.

    Returns:
      {measurement: (value, weight)}; 'loss/LABEL' of several labels.
    """
    scored = self.score(params, rows, batch, key)
    weight = jnp.sum(scored.weights)
    total, measured = jnp.float32(0.0), {}
    for i, label in enumerate(self.spec.labels):
      output, truth = scored.outputs[:, i], scored.labels[:, i]
      if label.kind == 'binary':
        each = losses.logistic_loss(output, truth)
      else:
        each = jnp.square(output - truth)
      # Whatever stands in the padding must not reach the gradient as 0 * NaN.
      each = jnp.where(scored.weights > 0, each * scored.weights, 0.0)
      value = jnp.sum(each)
      if len(self.labels) > 1:
        measured[f'loss/{label.name}'] = value, weight
      total += self._task_weights[i] * value
    return {'loss': (total, weight), **measured}
