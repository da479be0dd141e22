"""TBSM (arXiv 2008.11922): events compared with a candidate by inner products.

| paper, published code (tbsm_pytorch.py)       | here                         |
|-----------------------------------------------|------------------------------|
| z_i, DLRM of event i; z_T+1 = w, the candidate| `Encoder`, one `dlrm.DLRM`   |
| `--tsl-proj`, z / |z|                         | `projection`, `_project`     |
| a_i = z_i w, z_i A w, z_i A^t A w             | `mechanism`, `ComparingHead` |
| y = MLP(a), `--tsl-mechanism=mul` y = a       | `weights`                    |
| c = sum of y_i z_i                            | `ComparingHead.__call__`     |
| p_j = MLP_j([c_j, w])                         | `output_j`                   |
| MLP over p_1 .. p_J                           | `final`                      |
| `--tsl-seq`                                   | `k_sequences`                |
| `--model-type=mha`, `rnn`                     | `mechanism`, other heads     |

The tower reads of each event its columns of the history, its place, and all
features of the example that say nothing of the candidate alone, such as the
user; of the candidate the features that columns of the history are paired with.

Differences from the published code: the last layer of the tower is linear
(`relu_end`), and a vector of zeros has a finite projection (`projection_eps`);
the projection may be off; all weights are trained, those of A and of the
baselines too; events are packed, so that short histories cost less and their
missing events change nothing; the last layer gives logits.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from genrec_jax.config.event_models import TBSM as Config
from genrec_jax.config.models import DLRM as TowerConfig
from genrec_jax.features import Features, FeatureSpec, History, Inputs
from genrec_jax.models import dlrm, event_heads, fields, mlp
from genrec_jax.models.event_places import EventPlaces, find_places


@dataclasses.dataclass(frozen=True)
class Columns:
  """What is read of an event, and what of the candidate.

  Attributes:
    history: name of the history.
    most: events of the longest one, T; 0 if nobody knows.
    pairs: (feature of the candidate, column of the history), of rows.
    shared: features with rows that are the same for all events.
    event_numbers: (column of numbers of the history, that of the candidate), ''
      for one that is 0 there.
    shared_numbers: numbers that are the same for all events.
  """

  history: str
  most: int
  pairs: tuple[tuple[str, str], ...]
  shared: tuple[str, ...]
  event_numbers: tuple[tuple[str, str], ...]
  shared_numbers: tuple[str, ...]

  @property
  def vectors(self) -> tuple[str, ...]:
    """The features with rows that the tower reads, as of the candidate."""
    return (*self.shared, *(name for name, _ in self.pairs))

  @property
  def events(self) -> tuple[str, ...]:
    """The columns of the history with rows."""
    return tuple(name for _, name in self.pairs)


def widths(config: Config, features: Features) -> dict[str, int]:
  """The width of the table of each feature that is read."""
  columns = pair_columns(config, features)
  return dict.fromkeys((*columns.vectors, *columns.events), config.dim)


def pair_columns(config: Config, features: Features) -> Columns:
  """Which columns of the history belong to which features of the candidate.

  Args:
    config: of the model.
    features: of the data.

  Raises:
    ValueError: says what is missing, or what there is too much of.
  """
  by_name = {f.name: f for f in features}
  for key, names in (
    ('leave_out', config.leave_out),
    ('pairs', [*config.pairs, *config.pairs.values()]),
  ):
    for name in names:
      if name not in by_name:
        raise ValueError(
          f'model.{key} names {name!r}, and no feature has this name; the '
          f'features are {", ".join(by_name)}'
        )
  features = [f for f in features if f.name not in config.leave_out]
  history = _choose_history(config, features)
  events = [f for f in features if f.history == history]
  others = [f for f in features if not f.history]
  if more := sorted({f.history for f in features} - {history, ''}):
    raise ValueError(
      f'model tbsm reads one history, {history!r}, and there is '
      f'{", ".join(map(repr, more))}, too: name their columns in '
      'model.leave_out'
    )
  pairs, numbers = {}, {}
  for event in events:
    partner = _find_partner(config, event, others)
    if event.kind == 'numeric_sequence':
      numbers[event.name] = partner
    elif partner in pairs:
      raise ValueError(
        f'columns {pairs[partner]!r} and {event.name!r} of history {history!r} '
        f'are both paired with {partner!r}; name one in model.leave_out, or '
        'give model.pairs'
      )
    else:
      pairs[partner] = event.name
  if not pairs:
    raise ValueError(
      f'history {history!r} has no column of rows, such as the items: nothing '
      'can be compared with a candidate'
    )
  taken = {*pairs, *numbers.values()}
  return Columns(
    history,
    max(f.max_len for f in events),
    tuple(pairs.items()),
    _list_shared(others, taken, numeric=False),
    tuple(numbers.items()),
    _list_shared(others, taken, numeric=True),
  )


def _choose_history(config: Config, features: Sequence[FeatureSpec]) -> str:
  known = list(dict.fromkeys(f.history for f in features if f.history))
  if not known:
    lists = ', '.join(f.name for f in features if f.is_list)
    raise ValueError(
      'model tbsm compares the events of a history with a candidate, and no '
      'feature is a column of one: name all features in data.features, those '
      'of the history with data.features.NAME.history and max_len, as '
      'docs/tbsm.md shows'
      + (f' (now lists without a history: {lists})' if lists else '')
    )
  if config.history_name and config.history_name not in known:
    raise ValueError(
      f'model.history_name is {config.history_name!r}; the histories are '
      f'{", ".join(known)}'
    )
  if not config.history_name and len(known) > 1:
    raise ValueError(
      f'there are several histories ({", ".join(known)}): choose one by '
      'model.history_name, and name the columns of the others in '
      'model.leave_out'
    )
  return config.history_name or known[0]


def _find_partner(
  config: Config, event: FeatureSpec, others: Sequence[FeatureSpec]
) -> str:
  """The feature of the candidate; '' for a number that has none."""
  numeric = event.kind == 'numeric_sequence'
  if (name := config.pairs.get(event.name)) is not None:
    other = next((f for f in others if f.name == name), None)
    if other is None or (other.kind == 'numeric') != numeric:
      raise ValueError(
        f'model.pairs: {event.name!r} and {name!r} are not the same of an '
        'event and of the candidate; pair a sequence with a categorical '
        'feature, and numbers with a number'
      )
    if not numeric and other.source != event.source:
      raise ValueError(
        f'model.pairs: {event.name!r} reads table {event.source!r}, and '
        f'{name!r} reads {other.source!r}; give both the same '
        '(data.features.NAME.table)'
      )
    return name
  if numeric:
    return ''
  same = [
    f.name
    for f in others
    if f.kind == 'categorical' and f.source == event.source
  ]
  if len(same) == 1:
    return same[0]
  if same:
    what = f'several do ({", ".join(same)}); set model.pairs.{event.name}'
  else:
    what = f'none does; set data.features.NAME.table={event.source} for it'
  raise ValueError(
    f'which feature of the candidate is what {event.name!r} is of an event? '
    f'One that reads the same table, {event.source!r}, and {what}'
  )


def _list_shared(
  others: Sequence[FeatureSpec], taken: set[str], numeric: bool
) -> tuple[str, ...]:
  return tuple(
    f.name
    for f in others
    if f.name not in taken and (f.kind == 'numeric') == numeric
  )


class Encoder(nnx.Module):
  """The tower, a DLRM, over events and candidates."""

  def __init__(self, config: Config, features: Features, rngs: nnx.Rngs):
    c = self.config = config
    columns = self.columns = pair_columns(c, features)
    own = [f for f in features if f.name not in c.leave_out]
    tabled = [f.name for f in fields.table_features(own)]
    numeric = [f.name for f in fields.numeric_features(features)]
    counted = [
      f.name
      for f in features
      if f.history == columns.history and f.kind == 'numeric_sequence'
    ]
    # Places among the vectors and numbers of the inputs; -1 is the number 0.
    self._vectors = tuple(map(tabled.index, columns.vectors))
    self._shared = self._vectors[: len(columns.shared)]
    self._shared_numbers = tuple(map(numeric.index, columns.shared_numbers))
    self._event_numbers = tuple(
      (counted.index(event), numeric.index(name) if name else -1)
      for event, name in columns.event_numbers
    )
    tower = [FeatureSpec(name, rows=2) for name in columns.vectors]
    count = len(columns.shared_numbers) + len(columns.event_numbers)
    count += c.position
    tower += [FeatureSpec(f'number {i}', 'numeric') for i in range(count)]
    self.dlrm = dlrm.DLRM(
      TowerConfig(
        dim=c.dim,
        interaction=c.interaction,
        itself=c.itself,
        bottom=c.bottom,
        top=c.top,
        batch_norm=False,
        init=c.init,
        dtype=c.dtype,
      ),
      tower,
      c.width,
      rngs,
    )

  def __call__(
    self, x: Inputs, places: EventPlaces
  ) -> tuple[jax.Array, jax.Array]:
    """The vectors of events, `[K, m]`, and of candidates, `[B, m]`."""
    vectors, numbers = self._read_events(x, places)
    own_vectors, own_numbers = self._read_candidates(x)
    # One call: a row of the tower's is a row, whatever it stands for.
    both = [
      jnp.concatenate(pair) for pair in zip(vectors, own_vectors, strict=True)
    ]
    numbers = jnp.concatenate([numbers, own_numbers])
    rows = numbers.shape[0]
    z = self.dlrm(
      Inputs(
        vectors=tuple(both),
        numbers=numbers,
        linear=jnp.zeros(rows),
        weights=jnp.ones(rows),
      )
    )
    if self.config.relu_end:
      z = jax.nn.relu(z)
    if self.config.projection:
      z = _project(z, self.config.projection_eps)
    z = z.astype(self.config.dtype)
    return z[: len(places.example)], z[len(places.example) :]

  def _read_events(self, x: Inputs, places: EventPlaces):
    history = x.histories[self.columns.history]
    vectors = [places.spread(x.vectors[i]) for i in self._shared]
    vectors += [history.vectors[name] for name in self.columns.events]
    numbers = [places.spread(x.numbers[:, i]) for i in self._shared_numbers]
    numbers += [history.numbers[:, i] for i, _ in self._event_numbers]
    if self.config.position:
      numbers.append((places.slot + 1) / (places.most + 1))
    return vectors, _stack(numbers, len(places.example))

  def _read_candidates(self, x: Inputs):
    count = len(x.weights)
    vectors = [x.vectors[i] for i in self._vectors]
    numbers = [x.numbers[:, i] for i in self._shared_numbers]
    numbers += [
      jnp.zeros(count) if i < 0 else x.numbers[:, i]
      for _, i in self._event_numbers
    ]
    if self.config.position:
      numbers.append(jnp.ones(count))
    return vectors, _stack(numbers, count)


def _stack(numbers: list[jax.Array], count: int) -> jax.Array:
  """Columns side by side, `[count, N]`."""
  if not numbers:
    return jnp.zeros((count, 0))
  return jnp.stack(numbers, axis=1).astype(jnp.float32)


def _project(z: jax.Array, eps: float) -> jax.Array:
  """z / sqrt(|z|^2 + eps), with a finite gradient at zero."""
  z = z.astype(jnp.float32)
  square = jnp.sum(jnp.square(z), axis=-1, keepdims=True)
  if eps:
    return z * jax.lax.rsqrt(square + eps)
  # As the published code: zeros stay zeros.
  safe = jnp.where(square > 0, square, 1.0)
  return jnp.where(square > 0, z * jax.lax.rsqrt(safe), 0.0)


class TBSM(fields.Ranker):
  """A tower, heads over what it makes of events, and MLPs above them."""

  Config = Config
  reads_histories = True
  widths = staticmethod(widths)

  def __init__(
    self, config: Config, features: Features, outputs: int, rngs: nnx.Rngs
  ):
    c = self.config = config
    self.encoder = Encoder(c, features, rngs)
    self.columns = self.encoder.columns
    if not self.columns.most:
      raise ValueError(
        f'model tbsm must know how many events the longest history has: set '
        f'max_len of the columns of {self.columns.history!r} (data.features)'
      )
    self.heads = len(c.list_spans(self.columns.most))
    options = dict(init=c.init, rngs=rngs)
    for i, span in enumerate(c.list_spans(self.columns.most)):
      head = event_heads.make_head(c, span, rngs)
      output = mlp.MLP(
        head.width + c.width, c.hidden, outputs, dropout=c.dropout, **options
      )
      setattr(self, f'head_{i}', head)
      setattr(self, f'output_{i}', output)
    self.final = (
      mlp.MLP(self.heads * outputs, (self.heads + 4,), outputs, **options)
      if self.heads > 1 or c.one_head_mlp
      else None
    )

  @property
  def outer_sites(self) -> tuple[tuple[str, ...], ...]:
    """The first and the last product, see `products.assign_products`."""
    c, first = self.config, []
    for part, hidden in (('bottom', c.bottom), ('top', c.top)):
      if getattr(self.encoder.dlrm, part) is not None:
        layer = 'linear_0' if hidden else 'out'
        first.append(f'encoder/dlrm/{part}/{layer}/kernel')
    last = 'final/out/kernel' if self.final else 'output_0/out/kernel'
    return tuple(first), (last,)

  @property
  def hidden_width(self) -> int:
    return (self.final or self.output_0).hidden_width

  def read_backbone(self, x: Inputs, key=None) -> fields.Backbone:
    places = self._find_places(x.histories[self.columns.history])
    z, w = self.encoder(x, places)
    keys = [None] if key is None else jax.random.split(key, self.heads)
    shares = []
    for i in range(self.heads):
      head, output = getattr(self, f'head_{i}'), getattr(self, f'output_{i}')
      c = jnp.concatenate([head(z, w, places, x), w], axis=-1)
      own = None if key is None else keys[i]
      if self.final is None:
        return fields.Backbone(output.read_hidden(c, x, own))
      shares.append(jax.nn.sigmoid(output(c, x, own)))
    shares = jnp.concatenate(shares, axis=-1)
    return fields.Backbone(self.final.read_hidden(shares, x))

  def score_backbone(self, backbone: fields.Backbone) -> jax.Array:
    last = self.final or self.output_0
    return mlp.to_logits(last.out(backbone.hidden))

  def weigh_events(self, x: Inputs) -> jax.Array:
    """`[B, J, T]` weight that each head gives to each place of a history.

    The latest event is in the last place; places without an event have 0, and
    so have those that a head of `k_sequences` does not see.

    Args:
      x: the examples.
    """
    if not self.config.compares:
      raise ValueError(
        f'model.mechanism={self.config.mechanism!r} gives events no weights '
        "that can be shown; 'dot', 'ind' and 'def' do"
      )
    places = self._find_places(x.histories[self.columns.history])
    z, w = self.encoder(x, places)
    found = []
    for i in range(self.heads):
      head = getattr(self, f'head_{i}')
      own = places.keep_latest(head.span)
      found.append(places.place(head.weigh_events(z, w, own, x)))
    return jnp.stack(found, axis=1)

  def _find_places(self, history: History) -> EventPlaces:
    capacity = history.numbers.shape[0]
    return find_places(history.lengths, capacity, self.columns.most)
