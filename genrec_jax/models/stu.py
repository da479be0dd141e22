"""STU, the generative ranker: HSTU over what a user did and is asked about.

| paper 2402.17152, published code DLRM-HSTU | here                           |
|--------------------------------------------|--------------------------------|
| contextual and interleave preprocessors    | `request_tokens.RequestTokens` |
| sqrt(D) x + PosE + TsE                     | `request_positions`            |
| STU layers, L2STU, SDSTU                   | `stu_stack.Stack`, `hstu.Block`|
| item tower, postprocessor, multitask head  | `request_heads`                |
| targets, which do not see each other       | candidates                     |
| UIH, user interaction history              | history                        |

A batch goes three ways, one behind the other: `prepare` makes tokens, `encode`
runs the layers, `read_out` scores the candidates.

Differences from the paper: the attention is divided by one number and not by
the longest sequence of the batch, so that a score depends on its request alone
and is the same in training and in inference; the quirks of the published code
are options of `reference_compat`. Listwise candidates see each other in
inference too. Times are ages, counted back from the request.
"""

import jax
import jax.numpy as jnp
from flax import nnx

import pallas_kernels
from genrec_jax.config.request_models import STU as Config
from genrec_jax.features import (
  CANDIDATES,
  HISTORY,
  WEEK_SECOND,
  Examples,
  RequestSpec,
)
from genrec_jax.models import layers
from genrec_jax.models.request_heads import MultitaskHead, Postprocessor
from genrec_jax.models.request_positions import RequestPositions
from genrec_jax.models.request_sequences import Sequences
from genrec_jax.models.request_tokens import (
  RequestRead,
  RequestTokens,
  Rows,
  list_reads,
)
from genrec_jax.models.stu_stack import Stack
from genrec_jax.models.swish_mlp import SwishMLP


def widths(config: Config, spec: RequestSpec) -> dict[str, int]:
  """Width of the rows of each table."""
  return {read.table: read.width for read in list_reads(config, spec).values()}


class STU(nnx.Module):
  """Rows of requests -> a number for each label of each candidate.

  `rows` are `[K, width]` of each read of `list_reads`; what padding reads may
  be anything finite.
  """

  Config = Config
  widths = staticmethod(widths)

  def __init__(self, config: Config, spec: RequestSpec, rngs: nnx.Rngs):
    c = self.config = config
    self.spec = spec
    if c.postprocessor == 'timestamp' and not spec.timed:
      raise ValueError(
        "model.postprocessor='timestamp', but the requests have no times; take "
        "'layernorm'"
      )
    slots = self.slots = len(spec.context_columns)
    self.tokens = RequestTokens(c, spec, rngs)
    # Places go up to C + the longest history; those of a listwise sequence
    # are counted from the end of its candidates.
    rows = slots + c.tokens_of_event * c.max_history + 1
    rows += c.max_candidates if c.listwise else 0
    cut = 'time_clip_at_width' in c.reference_compat
    self.positions = RequestPositions(
      c.dim,
      contextual=slots,
      rows=rows if c.positions is None else c.positions,
      buckets=c.time_buckets,
      function=c.time_bucket_fn,
      last=c.dim - 1 if cut else c.time_buckets,
      scale=c.token_scale,
      tokens_of_event=c.tokens_of_event if c.counted_from == 'start' else 0,
      rngs=rngs,
    )
    self.stack = Stack(c, slots, rngs)
    self.postprocessor = Postprocessor(c, rngs)
    width = len(spec.candidate_features) * c.row_dim
    self.tower = SwishMLP(width, c.head_hidden, c.dim, rngs=rngs)
    self.head = MultitaskHead(c, spec, rngs)

  @property
  def outer_sites(self) -> tuple[tuple[str, ...], ...]:
    """The first and the last product, see `products.assign_products`."""
    first = ('compress', 'below')
    return (
      tuple(f'tokens/content/{name}/kernel' for name in first),
      ('head/net/above/kernel',),
    )

  def list_reads(self) -> dict[str, RequestRead]:
    """What `rows` must hold, by name."""
    return list_reads(self.config, self.spec)

  def __call__(
    self, rows: Rows, batch: Examples, key=None, train: bool = False
  ) -> dict[str, jax.Array]:
    """Scores the candidates: `[K]` float32 of each label.

    A label of kind 'binary' gets a logit, one of kind 'regression' a value. The
    scores of a request with more events or candidates than the config permits
    are NaN.

    Args:
      rows: of all reads.
      batch: the requests.
      key: random key of the dropouts; None for none.
      train: whether sequences are laid out as in training.
    """
    x, sequences = self.prepare(rows, batch, key, train)
    x = self.encode(x, sequences, key, train)
    return self.read_out(x, rows, batch, train)

  def prepare(
    self, rows: Rows, batch: Examples, key=None, train: bool = False
  ) -> tuple[jax.Array, Sequences]:
    """Tokens `[T, D]` of the sequences, ready for the layers."""
    x, sequences = self.tokens(rows, batch, train)
    x = self.positions(x, sequences, self._is_listwise(train))
    key = layers.split_key(key, 2)[0]
    x = layers.apply_dropout(
      x, self.config.input_dropout, key, numbers=sequences.number
    )
    return x.astype(self.config.dtype), sequences

  def encode(
    self, x: jax.Array, sequences: Sequences, key=None, train: bool = False
  ) -> jax.Array:
    """`[T, D]` behind all layers; arguments as `prepare` gives them."""
    key = layers.split_key(key, 2)[1]
    return self.stack(x, sequences, key, self._is_listwise(train))

  def read_out(
    self, x: jax.Array, rows: Rows, batch: Examples, train: bool = False
  ) -> dict[str, jax.Array]:
    """What `__call__` returns, of encoded tokens."""
    layout = self.tokens.find_layout(batch, train)
    user = x.at[layout.find_candidates()].get(mode='fill', fill_value=0)
    return self.read_candidates(user, rows, batch)

  def read_candidates(
    self, user: jax.Array, rows: Rows, batch: Examples
  ) -> dict[str, jax.Array]:
    """What `__call__` returns, of `[K, D]` encoded candidates."""
    c = self.config
    user = self._postprocess(user, batch, CANDIDATES)
    item = self.encode_items(rows, CANDIDATES)
    outputs = self.head(user.astype(c.dtype), item)
    wrong = batch.jagged[HISTORY].lengths > c.max_history
    wrong |= batch.jagged[CANDIDATES].lengths > c.max_candidates
    count = item.shape[0]
    segment = pallas_kernels.segment_ids(
      batch.jagged[CANDIDATES].lengths, count
    )
    wrong = wrong.at[segment].get(mode='fill', fill_value=False)
    # Nothing is cut without a word.
    return {n: jnp.where(wrong, jnp.nan, y) for n, y in outputs.items()}

  def encode_items(self, rows: Rows, part: str) -> jax.Array:
    """`[K, D]` of the items of a part, 'history' or 'candidates'."""
    return self.tower(self.tokens.concatenate_items(rows, part))

  def encode_history(
    self, rows: Rows, batch: Examples, key=None, train: bool = False
  ) -> jax.Array:
    """`[K, D]` float32 of each event of the histories, for retrieval.

    The vector of an event has seen the event with its action, and what came
    before; its product with `encode_items` scores what may come next.
    Places and ages are counted back from the request, so that they tell how
    many events follow, and when.

    Args:
      rows: of all reads.
      batch: the requests.
      key: random key of the dropouts; None for none.
      train: whether sequences are laid out as in training.

    Raises:
      ValueError: the context sees later events, and events see the context.
    """
    if self.slots and self.config.context_mask == 'both':
      raise ValueError(
        "model.context_mask='both' lets events see later ones through the "
        "context; take 'causal' to train on what comes next"
      )
    x, sequences = self.prepare(rows, batch, key, train)
    x = self.encode(x, sequences, key, train)
    layout = self.tokens.find_layout(batch, train)
    events = x.at[layout.find_events()].get(mode='fill', fill_value=0)
    return self._postprocess(events, batch, HISTORY)

  def _is_listwise(self, train: bool) -> bool:
    c = self.config
    in_training = 'listwise_in_training' in c.reference_compat
    return c.listwise and (train or not in_training)

  def _postprocess(self, x, batch: Examples, part: str) -> jax.Array:
    week_second = None
    if self.config.postprocessor == 'timestamp':
      segment = pallas_kernels.segment_ids(
        batch.jagged[part].lengths, x.shape[0]
      )
      times = batch.int_extras[WEEK_SECOND]
      week_second = times.at[segment].get(mode='fill', fill_value=0)
    return self.postprocessor(x, week_second)
