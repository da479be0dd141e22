"""Ranking: the probability that an example's labels are 1.

Categorical values, sets and sequences read rows of their tables; a model turns
the rows and the numbers into a logit for each label; the loss is binary cross
entropy. As in every task, `reads` declares what a batch reads.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config import TableSettings, tower_file
from genrec_jax.config.losses import RankingLossConfig
from genrec_jax.contracts import Extensions
from genrec_jax.embedding import several_rows
from genrec_jax.embedding.towers import NAME as TOWERS
from genrec_jax.embedding.towers import Towers
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
from genrec_jax.models import RANKERS, dmt
from genrec_jax.models.fields import LINEAR, first_order_table
from genrec_jax.numerics.products import (
  Product,
  Rules,
  assign_products,
  find_sites,
)
from genrec_jax.parallel import rules
from genrec_jax.tasks import losses, ranking_histories
from genrec_jax.tasks.settings import task_settings

_TOWERS = 'towers'  # of what stands beside a model


class Ranking:
  """A ranking model over one row of features.

  Attributes:
    features: the inputs, as the data have them.
    labels: name of each label.
    model_name: key of `genrec_jax.models.RANKERS`.
    model_config: of the model.
    hidden_width: of the model's last hidden layer; 0 for none.
    beside: name -> graphdef of what stands beside the model.
    sites: name -> `Site` of each weight that activations are multiplied with.
    param_l2: path of a parameter -> strength of its L2, see
      `RankingLossConfig`.
    towers: what stands under the model, or None; see `models.dmt`.
    tower_l2: path of a parameter of towers -> strength of its L2.
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
    policy: Rules = (),
    extra_products: Mapping[str, Product] | None = None,
    towers: Sequence[Sequence[str]] = (),
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
      policy: (regex of a weight, product) pairs, see `numerics.products`.
      extra_products: further products by name.
      towers: the features of each tower, see `models.dmt`; () for none.
    """
    if model_name not in RANKERS:
      raise ValueError(
        f'model.name is {model_name!r}; models for ranking are '
        f'{", ".join(sorted(RANKERS))}'
      )
    self.model_name, self._model = model_name, RANKERS[model_name]
    self.model_config = self._model.Config(**model)
    self.loss_config = RankingLossConfig(**loss)
    self.features, self.labels = tuple(features), tuple(labels)
    self._history_of = {f.name: f.history for f in self.features if f.history}
    self._seen = ranking_histories.choose_features(model_name, self.features)
    self._numeric = [f.name for f in self._seen if f.kind == 'numeric']
    self._tabled = [f for f in self._seen if f.has_table]
    self._check_weights()
    weights = self.loss_config.task_weights or (1.0,) * len(self.labels)
    self._task_weights = jnp.asarray(weights, jnp.float32)
    self._prior = tuple(math.log(p / (1 - p)) for p in self.loss_config.prior)
    self._widths = self._find_widths(towers)
    self._under = {name for own in towers for name in own}
    self._sizes = None
    if towers:
      widths = [[self._widths[name] for name in own] for own in towers]
      self._sizes = dmt.plan_sizes(self.model_config, widths)
    self._tables = {}
    for feature in self._tabled:
      for name, _, width in self._list_reads(feature).values():
        about = feature.rows, width, init_std, table_update, table_dtype
        l2 = self.loss_config.table_l2
        spec = self._settle_table(TableSpec(name, *about, l2=l2), settings)
        if self._tables.setdefault(name, spec) != spec:
          raise ValueError(
            f'features that share table {name!r} must have the same width'
          )
        several_rows.check_feature(feature, spec, feature.name in self._under)
    self.policy, self._extra_products = tuple(policy), extra_products
    model, beside, self.sites = self._build_shapes()
    self.graphdef = nnx.graphdef(model)
    self.beside = {name: nnx.graphdef(part) for name, part in beside.items()}
    self.hidden_width = model.hidden_width
    self.param_l2 = self._find_l2(nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    self.towers, self.tower_l2 = None, {}
    if (tower := beside.get(_TOWERS)) is not None:
      self.towers = self._make_towers(towers, self.beside[_TOWERS])
      shapes = nnx.to_pure_dict(nnx.state(tower, nnx.Param))
      if strength := self.loss_config.net_l2:
        self.tower_l2 = dict.fromkeys(rules.named_shapes(shapes), strength)

  @classmethod
  def from_config(
    cls,
    config,
    features: Sequence[FeatureSpec],
    labels: Sequence[str],
    extensions: Extensions | None = None,
    towers: Sequence[Sequence[str]] = (),
    **options,
  ) -> 'Ranking':
    """The task that a config describes.

    Args:
      config: of the experiment.
      features: the inputs.
      labels: name of each label.
      extensions: what is used from outside the library.
      towers: the features of each, where `config.model.towers` asks for them.
      **options: of a class made of this one.
    """
    model = config.model.to_dict()
    if bool(model.get('towers')) != bool(towers):
      raise ValueError(
        f'model.towers is {model.get("towers", "")!r}, and the features of '
        f'{len(towers)} towers are given'
      )
    return cls(
      model.pop('name'),
      model,
      config.loss.to_dict(),
      features=features,
      labels=labels,
      towers=towers,
      **task_settings(config, extensions),
      **cls.read_options(config),
      **options,
    )

  @classmethod
  def read_options(cls, config) -> dict:
    """What `from_config` reads besides, for classes made of this one."""
    del config
    return {}

  def _check_weights(self) -> None:
    for key in ('task_weights', 'prior'):
      values = getattr(self.loss_config, key)
      if values and len(values) != len(self.labels):
        raise ValueError(
          f'loss.{key} has {len(values)} numbers for '
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

  def _find_widths(self, towers) -> dict[str, int]:
    """Width of the table of each feature with one."""
    if not towers:
      return self._model.widths(self.model_config, self._seen)
    ranking_histories.refuse_towers(self._seen)
    c, names = self.model_config, [f.name for f in self._tabled]
    tables = {f.name: f.source for f in self._tabled}
    tower_file.check_towers(towers, names, tables)
    for key in ('small', 'dims'):
      if getattr(c, key, None):
        raise ValueError(
          f'model.{key} gives tables widths of their own, which towers cannot '
          f'stack: leave model.{key} or model.towers out'
        )
    width, important = c.tower_width or c.dim, getattr(c, 'important', {})
    return {name: width * important.get(name, 1) for name in names}

  def _settle_table(self, spec: TableSpec, settings) -> TableSpec:
    return settings(spec)

  def _build_parts(self, key=None) -> tuple[nnx.Module, dict]:
    """The model, and what stands beside it."""
    rngs = nnx.Rngs(0 if key is None else key)
    c, features = self.model_config, self._seen
    if self._sizes is not None:
      numbers = [f for f in features if f.kind == 'numeric']
      features = [*dmt.name_vectors(self._sizes), *numbers]
      if getattr(c, 'important', None):  # below the towers
        c = dataclasses.replace(c, important={})
    model = self._make_model(c, features, rngs)
    beside = self._build_beside(model, rngs)
    # Parts of the model while products are assigned, so that the rules of a
    # config name their weights as `towers/...`.
    for name, part in beside.items():
      setattr(model, name, part)
    assign_products(model, self.policy, self._extra_products)
    for name in beside:
      delattr(model, name)
    return model, beside

  def _make_model(self, config, features, rngs: nnx.Rngs) -> nnx.Module:
    return self._model(config, features, len(self.labels), rngs)

  def _build_beside(self, model, rngs: nnx.Rngs) -> dict[str, nnx.Module]:
    """Name -> what stands beside the model: one of the towers under it.

    Args:
      model: without weights, or with them.
      rngs: from which the model was drawn.
    """
    del model
    if self._sizes is None:
      return {}
    return {_TOWERS: dmt.make_module(self.model_config, self._sizes, rngs)}

  def _build_shapes(self):
    """All of it without weights, and the sites of all of it."""
    model, beside = nnx.eval_shape(self._build_parts)
    sites = find_sites(model)
    for name, part in beside.items():
      sites |= {f'{name}/{n}': site for n, site in find_sites(part).items()}
    return model, beside, dict(sorted(sites.items()))

  def _make_towers(self, towers, graphdef) -> Towers:
    """What stands between the sums of a host and the model."""
    config, sizes = self.model_config, self._sizes

    def init(key):
      # A tower that has a key of its own is the same in any company.
      keys = jax.random.split(key, len(towers))

      def init_one(key):
        tower = self._build_parts(key)[1][_TOWERS]
        return nnx.to_pure_dict(nnx.state(tower, nnx.Param))

      return jax.vmap(init_one)(keys)

    def apply(params, x, mask, draws):
      state = nnx.State(jax.tree.map(nnx.Param, params))
      module = nnx.merge(graphdef, state)
      return dmt.apply_module(module, config, x, mask, draws)

    return Towers(
      tuple(map(tuple, towers)),
      tuple(tuple(self._widths[name] for name in own) for own in towers),
      sizes.width,
      sizes.kept,
      init,
      apply,
      draws=config.tower_dropout > 0,
    )

  def describe_towers(self) -> str:
    """One line on the towers under the model; '' where there are none."""
    if self.towers is None:
      return ''
    return dmt.describe_towers(self.towers, self._sizes, self.model_config)

  def number_examples(self, batch: Examples) -> jax.Array:
    """`[B]` numbers of the examples in the whole batch, for random draws."""
    numbers = jnp.arange(batch.weights.shape[0], dtype=jnp.int32)
    if batch.first is None:
      return numbers
    shards = batch.first.shape[0]
    own = numbers.reshape(shards, -1) % (numbers.shape[0] // shards)
    return (batch.first[:, None] + own).reshape(-1)

  def tables(self) -> dict[str, TableSpec]:
    return self._tables

  def init(self, key: jax.Array) -> dict:
    """Fresh parameters of the model, a plain nested dict."""
    return nnx.to_pure_dict(nnx.state(self._build_parts(key)[0], nnx.Param))

  def count(self, batch: Examples) -> tuple[jax.Array, jax.Array]:
    """How many examples, as both numbers that the loop adds up."""
    examples = (batch.weights > 0).sum()
    return examples, examples

  def reads(self, batch: Examples, key=None) -> dict[str, Read]:
    """What the loss of a batch reads of each table, feature by feature."""
    del key
    real = batch.weights > 0  # examples that fill up a batch touch no row
    reads = self._read_features(batch)
    order = jnp.argsort(~real, stable=True) if self._under else None
    of_events = {f.name: f.history for f in self._tabled if f.history}
    for name, read in reads.items():
      if name in of_events:
        events = batch.jagged[of_events[name]]
        ids = ranking_histories.skip_examples(read.ids, events, real)
        reads[name] = dataclasses.replace(read, ids=ids)
      elif read.pooling == 'none':
        ids = jnp.where(real, read.ids, UNREAD)
        reads[name] = dataclasses.replace(read, ids=ids)
      elif name in self._single:
        # Bags of one id follow each other without a gap; others are empty.
        reads[name] = dataclasses.replace(
          read, ids=read.ids[order], lengths=real.astype(jnp.int32)
        )
    return several_rows.add_second(reads, self._tables)

  @property
  def _single(self) -> set[str]:
    """Single ids that are read as bags of one, because towers see sums."""
    return {f.name for f in self._tabled if not f.pooled} & self._under

  def reads_for(self, purpose: str, batch: Examples) -> dict[str, Read]:
    """What is read outside of training: the same, whatever its weights."""
    del purpose
    return several_rows.add_second(self._read_features(batch), self._tables)

  def _read_features(self, batch: Examples) -> dict[str, Read]:
    reads = {}
    for feature in self._tabled:
      history = self._history_of.get(feature.name, '')
      bag = batch.jagged[history or feature.name] if feature.is_list else None
      if feature.history:
        read = Read(ranking_histories.read_events(bag, feature.name), '')
      elif history:
        ids, lengths = ranking_histories.drop_missing(bag, feature.name)
        read = Read(ids, '', lengths)
      elif feature.pooled:
        weights = bag.floats[WEIGHT] if feature.weighted else None
        read = Read(bag[feature.name], '', bag.lengths, weights)
      elif feature.name in self._under:
        ids = batch.ids[feature.name]
        read = Read(ids, '', jnp.ones(ids.shape, jnp.int32))
      else:
        read = Read(batch.ids[feature.name], '')
      for name, (table, pooling, _) in self._list_reads(feature).items():
        reads[name] = dataclasses.replace(read, table=table, pooling=pooling)
    return reads

  def expected_reads(self) -> dict[str, ExpectedRead]:
    """What an example reads of each table: at most, or in the mean."""
    reads = {
      name: ExpectedRead(
        table,
        float(feature.max_len or feature.mean_len) if feature.is_list else 1.0,
        pooling,
      )
      for feature in self._tabled
      for name, (table, pooling, _) in self._list_reads(feature).items()
    }
    return several_rows.expect_second(reads, self._tables)

  def _list_reads(self, feature: FeatureSpec) -> dict[str, tuple]:
    """Name of each read of a feature -> (table, pooling, width)."""
    pooling = feature.pooling if feature.pooled else 'none'
    if feature.name in self._under and not feature.pooled:
      pooling = 'sum'
    reads = {}
    if width := self._widths.get(feature.name):
      reads[feature.name] = feature.source, pooling, width
    if self._model.linear and not feature.history:
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
    model = self.merge_model(params)
    return self.add_prior(model(self.inputs(rows, batch), key))

  def weigh_events(self, params, rows, batch: Examples) -> jax.Array:
    """`[B, J, T]` weights of events, as `models.tbsm.TBSM.weigh_events`."""
    model = self.merge_model(params)
    if not hasattr(model, 'weigh_events'):
      raise ValueError(
        f'model.name={self.model_name!r} gives no weights to events; tbsm does'
      )
    return model.weigh_events(self.inputs(rows, batch))

  def add_prior(self, logits: jax.Array) -> jax.Array:
    """The logits of a head `[B, L]`, as they begin with `loss.prior`."""
    logits = logits.astype(jnp.float32)
    if not self._prior:
      return logits
    return logits + jnp.array(self._prior, jnp.float32)[None]

  def merge_model(self, params) -> nnx.Module:
    """The model with these parameters."""
    state = nnx.State(jax.tree.map(nnx.Param, params))
    return nnx.merge(self.graphdef, state)

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
    rows = several_rows.combine_views(rows, self._tables)
    vectors, linear = [], jnp.zeros(batch.weights.shape)
    if self.towers is not None:
      made = rows[TOWERS].all()
      # Of slices, the gradient would be a sum of as many padded arrays.
      made = jnp.split(made, made.shape[1], axis=1)
      vectors = [vector[:, 0] for vector in made]
    for feature in self._tabled:
      if feature.name in self._under or feature.history:
        continue
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
      histories=ranking_histories.collect_histories(
        self._seen, rows, batch, [n for n, w in self._widths.items() if w]
      ),
    )

  def loss(self, params, rows, batch: Examples, key: jax.Array):
    """Sum of the examples' cross entropies, see `retrieval.Retrieval.loss`."""
    logits = self.predict(params, rows, batch, key)
    each = losses.logistic_loss(logits, batch.labels.select(self.labels))
    total = self.sum_losses(each, batch)
    return {'loss': (total, jnp.sum(batch.weights))}

  def sum_losses(self, each: jax.Array, batch: Examples, counts=None):
    """The sum over examples and labels, each with its weights.

    Args:
      each: `[B, L]` losses.
      batch: the examples.
      counts: `[B]` further weights of the examples.
    """
    if batch.label_weights is not None:
      each *= batch.label_weights.select(self.labels)
    each = each @ self._task_weights
    weights = batch.weights if counts is None else batch.weights * counts
    return jnp.sum(jnp.where(weights > 0, each * weights, 0.0))
