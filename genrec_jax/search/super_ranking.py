"""A supernet as a task: weights and theta learn in turns.

In steps of the weights the loss is the cross entropy with drawn weights. In
steps of theta, on other examples, the cost is added (`search.cost_loss`):

    linear       CE + weight * mean(log cost) / 100
    exponential  CE * weight * mean((log cost) ** power)
    budget       CE + sum over budgets of mu max(E[cost] / budget - 1, 0)

where the cost of an example is that of its drawn weights, E[cost] that of
softmax(theta), and mu >= 0 rises while a budget is exceeded, by
`search.budget_rate` (E[cost] / budget - 1) in a step. In the first
`search.budget_epochs` of theta a budget falls from the cost of the mean model
to what is asked: asked at once, it decides before the examples have.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from genrec_jax.features import Examples, Inputs, TableSpec
from genrec_jax.search import gumbel
from genrec_jax.search.choices import measure_entropy
from genrec_jax.search.phases import Phases
from genrec_jax.search.settings import SearchSettings, build_space
from genrec_jax.search.super_wukong import SuperWukong
from genrec_jax.search.supernet import MULTIPLIER, SuperDLRM
from genrec_jax.search.table_space import TableSpace
from genrec_jax.tasks import losses
from genrec_jax.tasks.ranking import Ranking

SUPERNETS = {'dlrm': SuperDLRM, 'wukong': SuperWukong}
THETA = 'params/choices/.*'  # paths of the parameters with steps of their own
MULTIPLIERS = f'params/choices/{re.escape(MULTIPLIER)}.*'
_PART = '@'  # between a table and its number of rows


@dataclasses.dataclass(frozen=True)
class Turns:
  """Whose steps are whose, see `runtime.alternation`."""

  phases: Phases
  groups: int
  outer_factor: float = 0.0
  pattern: str = THETA

  def is_inner(self, step: jax.Array) -> jax.Array:
    return self.phases.is_choosing(step)


class SuperRanking(Ranking):
  """`Ranking` of all models of a space.

  Attributes:
    search: settings of the search.
    space: the architectures.
    alternation: whose steps are whose.
    shown: what progress shows.
  """

  needs_step = True
  # Of what is measured, which is an entropy for each choice, too.
  shown = ('search/temperature', 'expected/flops', 'expected/bytes')

  def __init__(
    self,
    *args,
    search: SearchSettings,
    phases: Phases,
    rate: float = 0.0,
    spaces: Mapping[str, TableSpace] | None = None,
    **options,
  ):
    """Checks that the parts fit together.

    Args:
      *args: of `Ranking`.
      search: settings of the search.
      phases: of the training.
      rate: of the optimizer of the weights, with `search.shared_optimizer`.
      spaces: name -> a space from outside the library.
      **options: of `Ranking`.
    """
    self.search, self._phases, self._spaces = search, phases, spaces
    self._space = None
    if search.shared_optimizer and search.optimizer != 'sgd':
      raise ValueError(
        'search.shared_optimizer moves the choices at the rate of the weights, '
        f'and search.optimizer={search.optimizer!r} makes of its gradients '
        "steps of its own size: set search.optimizer='sgd'"
      )
    factor = rate / search.learning_rate if search.shared_optimizer else 0.0
    # With budgets, multipliers are a group beside theta.
    self.alternation = Turns(phases, 1 + bool(self._budgets), factor)
    super().__init__(*args, **options)
    if not self._tabled:
      raise ValueError('a search needs features with a table; there are none')
    row_bytes = {
      self.name_in_config(name): np.dtype(spec.dtype).itemsize
      for name, spec in self._tables.items()
    }
    # A table may have fewer rows than ids, by its settings.
    rows = {
      name: spec.rows
      for name, spec in self._tables.items()
      if self.name_in_config(name) == name
    }
    self._space = dataclasses.replace(
      self.space,
      row_bytes=row_bytes,
      rows={
        table: sizes if len(sizes) > 1 else (rows.get(table, sizes[0]),)
        for table, sizes in self.space.rows.items()
      },
    )
    search.check_budgets(self.space)
    measured = ['loss', 'loss/labels', 'search/temperature']
    measured += [f'search/{cost}' for cost in self.space.costs]
    measured += [f'expected/{cost}' for cost in self.space.costs]
    measured += [f'entropy/{choice.name}' for choice in self.space.choices]
    measured += [f'multiplier/{cost}' for cost in self._budgets]
    self.measurements = dict.fromkeys(measured, 'mean')

  @classmethod
  def read_options(cls, config) -> dict:
    rate = config.optimizer.learning_rate
    return {'search': SearchSettings(config.search.to_dict()), 'rate': rate}

  @property
  def space(self):
    if self._space is None:
      if self.model_name not in SUPERNETS:
        raise ValueError(
          f'model.name={self.model_name!r} cannot be searched; '
          f'{" and ".join(SUPERNETS)} can'
        )
      self._space = build_space(
        self.search,
        self.model_config,
        self._seen,
        len(self.labels),
        {},  # of which no task is known yet
        self._spaces,
      )
    return self._space

  @property
  def _budgets(self) -> dict[str, float]:
    return self.search.budgets if self.search.cost_loss == 'budget' else {}

  def _find_widths(self, towers) -> dict[str, int]:
    del towers  # which no supernet has
    dims = self.space.dims
    return {f.name: max(dims[f.source]) for f in self._tabled}

  def _find_l2(self, params) -> dict[str, float]:
    found = super()._find_l2(params)
    return {n: x for n, x in found.items() if not n.startswith('choices/')}

  def _list_reads(self, feature) -> dict[str, tuple]:
    """One read for each number of rows."""
    sizes = self.space.rows[feature.source]
    own = super()._list_reads(feature)
    if len(sizes) == 1:
      return own
    return {
      f'{name}{_PART}{size}': (f'{table}{_PART}{size}', pooling, width)
      for name, (table, pooling, width) in own.items()
      for size in sizes
    }

  def name_in_config(self, table: str) -> str:
    """The table of which one has so many rows; see `task_checks`."""
    name, part, _ = table.rpartition(_PART)
    return name if part and len(self.space.rows.get(name, ())) > 1 else table

  def _settle_table(self, spec: TableSpec, settings) -> TableSpec:
    table = self.name_in_config(spec.name)
    if table == spec.name:
      return settings(spec)
    size = spec.name.rpartition(_PART)[2]
    spec = settings(dataclasses.replace(spec, name=table))
    if spec.id_map != 'identity':
      raise ValueError(
        f'config.tables: table {table!r} has id_map={spec.id_map!r}, and its '
        "rows are searched: leave the map out, or 'emb_rows' (search.spaces)"
      )
    name, rows = f'{table}{_PART}{size}', int(size)
    if rows == spec.rows:
      return dataclasses.replace(spec, name=name)
    return dataclasses.replace(
      spec, name=name, rows=rows, ids=spec.rows, id_map='hash'
    )

  def _make_model(self, config, features, rngs: nnx.Rngs) -> nnx.Module:
    return SUPERNETS[self.model_name](self.space, self._budgets, rngs)

  def inputs(self, rows, batch: Examples) -> Inputs:
    """With a vector for each number of rows of a table."""
    vectors = [
      rows[name].all()
      for feature in self._tabled
      for name in self._list_reads(feature)
    ]
    return Inputs(
      vectors=tuple(vectors),
      numbers=batch.dense.select(self._numeric),
      linear=jnp.zeros(batch.weights.shape),
      weights=batch.weights,
      first=batch.first,
    )

  def measure_costs(self, weights) -> dict[str, jax.Array]:
    """Costs `[...]` with weights, see `ArchitectureSpace.measure`."""
    found = self.space.measure(weights, self.search.drop_skips)
    shape = jnp.shape(next(iter(weights.values())))[:-1]
    return {n: jnp.broadcast_to(x, shape) for n, x in found.items()}

  def loss(self, params, rows, batch: Examples, key: jax.Array, step=None):
    """As `Ranking.loss`, with drawn weights and the cost.

    Args:
      params: the model's parameters.
      rows: a view of each feature that `reads` announced.
      batch: the examples.
      key: of the step.
      step: its number.
    """
    search = self.search
    model = self.merge_model(params)
    theta = model.read_theta()
    temperature = gumbel.find_temperature(
      self._phases.count_epochs(step),
      search.temperature,
      search.temperature_decay,
    )
    numbers = self.number_examples(batch)
    if search.draws == 'batch':
      numbers = jnp.zeros(1, jnp.int32)
    key, own = jax.random.split(key)
    weights = gumbel.draw_weights(
      theta, own, numbers, temperature, hard=search.hard
    )
    logits = self.add_prior(model.mix(self.inputs(rows, batch), weights, key))
    each = losses.logistic_loss(logits, batch.labels.select(self.labels))
    labels = self.sum_losses(each, batch)
    weight = jnp.sum(batch.weights)
    drawn = self.measure_costs(weights)
    expected = self.measure_costs(gumbel.expect_weights(theta))
    total = jnp.where(
      self._phases.is_choosing(step),
      self._add_cost(labels, weight, drawn, expected, model, step),
      labels,
    )

    def say(value):
      return value * weight, weight

    measured = {
      'loss': (total, weight),
      'loss/labels': (labels, weight),
      'search/temperature': say(temperature),
    }
    for cost in self.space.costs:
      measured[f'search/{cost}'] = say(jnp.mean(drawn[cost]))
      measured[f'expected/{cost}'] = say(expected[cost])
    for name, logits in theta.items():
      entropy = measure_entropy(jax.nn.softmax(logits))
      measured[f'entropy/{name}'] = say(entropy)
    for cost, multiplier in model.read_multipliers().items():
      measured[f'multiplier/{cost}'] = say(jax.nn.relu(multiplier))
    return measured

  @functools.cached_property
  def _first_costs(self) -> dict[str, float]:
    """Expected costs where each option is as likely as any other."""
    costs = self.space.measure(self.space.make_uniform())
    return {n: float(x) for n, x in costs.items()}

  def find_budgets(self, step) -> dict[str, jax.Array]:
    """What the loss asks for in a step.

    Args:
      step: its number.
    """
    left, falling = 0.0, self.search.budget_epochs
    if falling:
      left = 1.0 - self._phases.measure_epochs(step) / falling
      left = jnp.clip(left, 0.0, 1.0)
    return {
      cost: most * max(self._first_costs[cost] / most, 1.0) ** left
      for cost, most in self._budgets.items()
    }

  def _add_cost(self, labels, weight, drawn, expected, model, step):
    """The sum of the examples' losses with the cost of their nets."""
    search = self.search
    if search.cost_loss == 'none':
      return labels
    if search.cost_loss == 'budget':
      total, budgets = labels, self.find_budgets(step)
      for cost, own in model.read_multipliers().items():
        over = expected[cost] / budgets[cost] - 1.0
        held = jax.lax.stop_gradient
        # Down for theta is up for the multiplier, which stays at 0 while there
        # is room: below, it would be late when there is none.
        stays = (own <= 0.0) & (over < 0.0)
        rise = held(jnp.where(stays, 0.0, over))
        # Within the budget nothing pushes: what a multiplier that has to fall
        # first would take in the meantime does not come back.
        push = held(jax.nn.relu(own)) * jax.nn.relu(over)
        total += weight * (push - own * rise)
      return total
    logs = jnp.log(drawn[search.cost])
    if search.cost_loss == 'linear':
      return labels + weight * search.cost_weight * jnp.mean(logs) / 100.0
    return labels * search.cost_weight * jnp.mean(logs**search.cost_power)
