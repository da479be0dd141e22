"""Ranking: the probability that an example's labels are 1.

Categorical values, sets and sequences read rows of their tables; a model turns
the rows and the numbers into a logit for each label; the loss is binary cross
entropy. As in every task, `reads` declares what a batch reads.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config import TableSettings
from genrec_jax.config.losses import RankingLossConfig
from genrec_jax.contracts import Extensions
from genrec_jax.features import (
  UNREAD,
  WEIGHT,
  Examples,
  ExpectedRead,
  FeatureSpec,
  Inputs,
  Read,
  TableSpec,
)
from genrec_jax.models import RANKERS
from genrec_jax.models.fields import LINEAR, first_order_table
from genrec_jax.numerics.products import (
  Product,
  Rules,
  assign_products,
  find_sites,
)
from genrec_jax.parallel import rules
from genrec_jax.tasks import losses
from genrec_jax.tasks.settings import task_settings


class Ranking:
  """A ranking model over one row of features.

  Attributes:
    features: the inputs.
    labels: name of each label.
    model_config: of the model.
    sites: name -> `Site` of each weight that activations are multiplied with.
    param_l2: path of a parameter -> strength of its L2, see
      `RankingLossConfig`.
  """

  progress_unit = 'examples'  # the unit in which progress is counted
  measurements = {'loss': 'mean'}

  def __init__(
    self,
    model_name: str,
    model: dict,
    loss: dict,
    *,
    features: Sequence[FeatureSpec],
    labels: Sequence[str],
    table_update: str = 'dense',
    table_dtype: str = 'float32',
    init_std: float = 1e-4,
    settings: TableSettings = TableSettings(),
    products: Rules = (),
    extra_products: Mapping[str, Product] | None = None,
  ):
    """Checks that the parts fit together.

    Args:
      model_name: key of `genrec_jax.models.RANKERS`.
      model: fields of the model's `Config`.
      loss: fields of `RankingLossConfig`.
      features: the inputs.
      labels: name of each label.
      table_update: 'dense', or the name of a row optimizer.
      table_dtype: of the tables' rows.
      init_std: deviation of the tables' initialiser.
      settings: of some tables, in place of these three.
      products: (regex of a weight, product) pairs, see `numerics.products`.
      extra_products: further products by name.
    """
    if model_name not in RANKERS:
      raise ValueError(
        f'model.name is {model_name!r}; models for ranking are '
        f'{", ".join(sorted(RANKERS))}'
      )
    self._model = RANKERS[model_name]
    self.model_config = self._model.Config(**model)
    self.loss_config = RankingLossConfig(**loss)
    self.features, self.labels = tuple(features), tuple(labels)
    self._numeric = [f.name for f in self.features if f.kind == 'numeric']
    self._tabled = [f for f in self.features if f.kind != 'numeric']
    self._check_weights()
    weights = self.loss_config.task_weights or (1.0,) * len(self.labels)
    self._task_weights = jnp.asarray(weights, jnp.float32)
    self._widths = self._model.widths(self.model_config, self.features)
    self._tables = {}
    for feature in self._tabled:
      for name, _, width in self._list_reads(feature).values():
        about = feature.rows, width, init_std, table_update, table_dtype
        l2 = self.loss_config.table_l2
        spec = settings(TableSpec(name, *about, l2=l2))
        if self._tables.setdefault(name, spec) != spec:
          raise ValueError(
            f'features that share table {name!r} must have the same width'
          )
    self.products, self._extra_products = tuple(products), extra_products
    model = nnx.eval_shape(self._build_model)
    self.graphdef, self.sites = nnx.graphdef(model), find_sites(model)
    self.param_l2 = self._find_l2(nnx.to_pure_dict(nnx.state(model, nnx.Param)))

  @classmethod
  def from_config(
    cls,
    config,
    features: Sequence[FeatureSpec],
    labels: Sequence[str],
    extensions: Extensions | None = None,
  ) -> 'Ranking':
    """The task that a config describes.

    Args:
      config: of the experiment.
      features: the inputs.
      labels: name of each label.
      extensions: what is used from outside the library.
    """
    model = config.model.to_dict()
    return cls(
      model.pop('name'),
      model,
      config.loss.to_dict(),
      features=features,
      labels=labels,
      **task_settings(config, extensions),
    )

  def _check_weights(self) -> None:
    weights = self.loss_config.task_weights
    if weights and len(weights) != len(self.labels):
      raise ValueError(
        f'loss.task_weights has {len(weights)} numbers for '
        f'{len(self.labels)} labels ({", ".join(self.labels)})'
      )

  def _find_l2(self, params) -> dict[str, float]:
    loss, strengths = self.loss_config, {}
    for name in rules.named_shapes(params):
      number = re.fullmatch(self._model.number_weights, name)
      strength = loss.table_l2 if number else loss.net_l2
      if strength and not rules.is_statistic(name):
        strengths[name] = strength
    return strengths

  def _build_model(self, key=None) -> nnx.Module:
    rngs = nnx.Rngs(0 if key is None else key)
    model = self._model(
      self.model_config, self.features, len(self.labels), rngs
    )
    return assign_products(model, self.products, self._extra_products)

  def tables(self) -> dict[str, TableSpec]:
    return self._tables

  def init(self, key: jax.Array) -> dict:
    """Fresh parameters of the model, a plain nested dict."""
    return nnx.to_pure_dict(nnx.state(self._build_model(key), nnx.Param))

  def count(self, batch: Examples) -> tuple[jax.Array, jax.Array]:
    """How many examples, as both numbers that the loop adds up."""
    examples = (batch.weights > 0).sum()
    return examples, examples

  def reads(self, batch: Examples, key=None) -> dict[str, Read]:
    """What the loss of a batch reads of each table, feature by feature."""
    del key
    real = batch.weights > 0  # examples that fill up a batch touch no row
    return {
      name: dataclasses.replace(read, ids=jnp.where(real, read.ids, UNREAD))
      if read.pooling == 'none'
      else read
      for name, read in self.reads_for('predict', batch).items()
    }

  def reads_for(self, purpose: str, batch: Examples) -> dict[str, Read]:
    """What is read outside of training: the same, whatever its weights."""
    del purpose
    reads = {}
    for feature in self._tabled:
      if feature.pooled:
        bag = batch.jagged[feature.name]
        weights = bag.floats[WEIGHT] if feature.weighted else None
        read = Read(bag[feature.name], '', bag.lengths, weights)
      else:
        read = Read(batch.ids[feature.name], '')
      for name, (table, pooling, _) in self._list_reads(feature).items():
        reads[name] = dataclasses.replace(read, table=table, pooling=pooling)
    return reads

  def expected_reads(self) -> dict[str, ExpectedRead]:
    """What an example reads of each table: at most, or in the mean."""
    return {
      name: ExpectedRead(
        table,
        float(feature.max_len or feature.mean_len) if feature.pooled else 1.0,
        pooling,
      )
      for feature in self._tabled
      for name, (table, pooling, _) in self._list_reads(feature).items()
    }

  def _list_reads(self, feature: FeatureSpec) -> dict[str, tuple]:
    """Name of each read of a feature -> (table, pooling, width)."""
    pooling = feature.pooling if feature.pooled else 'none'
    reads = {}
    if width := self._widths.get(feature.name):
      reads[feature.name] = feature.source, pooling, width
    if self._model.linear:
      if feature.pooled and self.model_config.first_order == 'feature':
        pooling = 'sum'
      table = first_order_table(self.model_config, feature)
      reads[feature.name + LINEAR] = table, pooling, 1
    return reads

  def predict(self, params, rows, batch: Examples, key=None) -> jax.Array:
    """Logit of each label, `[B, L]` float32.

    Args:
      params: the model's parameters.
      rows: a view of each feature that `reads` announced.
      batch: the examples.
      key: for dropout and batch statistics, while training.
    """
    state = nnx.State(jax.tree.map(nnx.Param, params))
    model = nnx.merge(self.graphdef, state)
    return model(self.inputs(rows, batch), key).astype(jnp.float32)

  @property
  def binary_labels(self) -> tuple[str, ...]:
    """The labels of `score_labels`."""
    return self.labels

  def score_labels(self, params, rows, batch: Examples):
    """(logits `[B, L]`, labels `[B, L]`, weights `[B]`, group `[B]`)."""
    logits = self.predict(params, rows, batch)
    labels = batch.labels.select(self.labels)
    return logits, labels, batch.weights, batch.group

  def inputs(self, rows, batch: Examples) -> Inputs:
    """What the model sees of a batch."""
    vectors, linear = [], jnp.zeros(batch.weights.shape)
    for feature in self._tabled:
      if self._widths.get(feature.name):
        vectors.append(rows[feature.name].all())
      if self._model.linear:
        linear += rows[feature.name + LINEAR].all()[:, 0]
    return Inputs(
      vectors=tuple(vectors),
      numbers=batch.dense.select(self._numeric),
      linear=linear,
      weights=batch.weights,
      first=batch.first,
    )

  def loss(self, params, rows, batch: Examples, key: jax.Array):
    """Sum of the examples' cross entropies, see `retrieval.Retrieval.loss`."""
    logits = self.predict(params, rows, batch, key)
    each = losses.logistic_loss(logits, batch.labels.select(self.labels))
    if batch.label_weights is not None:
      each *= batch.label_weights.select(self.labels)
    each = each @ self._task_weights
    total = jnp.sum(jnp.where(batch.weights > 0, each * batch.weights, 0.0))
    return {'loss': (total, jnp.sum(batch.weights))}
