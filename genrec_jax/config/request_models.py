"""Every field of the models of requests: its type, default and meaning.

A request asks for scores of candidates, see `features.RequestSpec`.
`models.stu` imports `STU` as its `Config`; `models.pooled_requests` makes the
inputs of any ranking model as `PooledRequests` says.
"""

import dataclasses
from collections.abc import Mapping

from genrec_jax.config.loading import quote_value
from genrec_jax.config.model_fields import check_fields, check_window
from genrec_jax.config.models import DTYPES

LAYOUTS = ('summed', 'interleaved', 'no_actions')
HEAD_INPUTS = ('product', 'all')
POSTPROCESSORS = ('l2norm', 'layernorm', 'timestamp')
OLDEST_EVENTS = 'oldest_events'
# What the published code does and this library does not, unless asked to.
QUIRKS = (
  'batch_normaliser',
  'context_by_candidates',
  'listwise_in_training',
  OLDEST_EVENTS,
  'pi_3_14',
  'time_clip_at_width',
)


@dataclasses.dataclass(frozen=True)
class STU:
  """Sizes and variants of `models.stu`.

  The published model (DLRM-HSTU) has dim 512, 5 blocks, 4 heads, dqk = dv =
  128, token_hidden 256, head_hidden 512, max_history 16,384, 8,192 positions,
  input_dropout .2, dropout .1 and the postprocessor 'timestamp'.

  Attributes:
    dim: width D of a token.
    table_dim: width of the rows of all tables; 0 is `dim`.
    blocks: number of layers.
    heads: attention heads.
    dqk: width of a query and of a key, per head.
    dv: width of a value (and of U), per head.
    token_hidden: hidden width of the MLPs that make tokens.
    head_hidden: hidden width of the item tower and of the head.
    head_inputs: what the head gets of a candidate. 'product' is the product of
      the user's and the item's vector, as published; 'all' is the two vectors
      beside it, so that what an item is worth to everybody needs no product.
    layout: what a sequence is made of. 'summed' has one token an event, its
      content plus its action; 'interleaved' one of its content and one of its
      action; 'no_actions' its content alone.
    candidate_actions: whether, while training, interleaved candidates too have
      a token for the action that is not known. Nothing sees that token: scores
      are the same without it, and cheaper.
    joint_content: whether one MLP makes the content of an item of all its
      features. Else its id, the first of them, and the others have one each, as
      in the published code; then an id of which nothing is known yet has a
      content as long as one that has been learned.
    context_mlps: whether the weights of the MLPs that make tokens are made of
      the context of the request; for requests with context.
    action_dim: numbers for each bit of an action.
    action_std: deviation from which the vectors of actions start.
    watch_times: (seconds, bit) pairs; an event that was watched for so many
      seconds or more has the bit, beside those of its action.
    max_history: most events of a history.
    max_candidates: most candidates of a request.
    min_context_events: events that a history must have for the context of the
      request to count; the context of others is zero.
    token_scale: factor of the tokens, in front of the rows of places and ages
      that are added; None is sqrt(dim), as published. With 1, layers change
      tokens more, and places count for more, from the start.
    context_mask: which tokens a token of the context sees, 'both' for context
      and all of the history, 'causal' for those in front of it.
    window: how many tokens of the history a token looks back; None is any
      number.
    full_tail: latest tokens of the history that the window does not bind; with
      any, it does not bind the candidates either.
    prefix: oldest tokens of the history that are seen from beyond the window,
      and with them the context; with any, attention is semi-local (arXiv
      2602.16986).
    counted_from: where places and ages are counted from. 'request', as
      published, is how many tokens and how much time lie between a token and
      the request, so that every new event moves all others. 'start' is the
      place from the start of the history and the time since the event before
      it: then what is known of a history stays, and `serve.cached_scorer`
      keeps it from one request of a user to the next.
    positions: rows of the table of positions; None is as many as are needed.
    time_buckets: buckets of the age of an event.
    time_bucket_fn: how the bucket grows with the minutes of the age, 'sqrt' or
      'log'.
    position_bias: whether the attention has a relative position bias.
    time_bias: whether it has a relative time bias.
    truncated_layers: how many of the last layers see only the latest
      `truncated_to` tokens of the history; the others pass them by.
    truncated_to: how many tokens of the history those layers see.
    skipped_layers: how many of the last layers are left out, all of them
      together, in some steps of the training.
    skip_rate: probability of such a step.
    input_dropout: rate on the tokens.
    dropout: rate on the gated output of each layer.
    group_norm: whether the norm of the attention's output is one a head.
    gate: what is applied to the U that multiplies the normed attention:
      'none', 'sigmoid' or 'silu'.
    norm_eps: epsilon of the norms of a layer.
    alpha: factor of q.k; None is 1/sqrt(dqk).
    tied_start: whether the matrix of the keys starts as that of the queries, so
      that a token attends to those like it from the first step on.
    normaliser: divisor of the attention's scores, the same in training and in
      inference; None is the longest sequence that the other sizes permit.
    postprocessor: what a candidate's token goes through before the head,
      'l2norm', 'layernorm' or 'timestamp', which adds the hour of the day and
      the day of the week of the request in front of a layer norm.
    listwise: whether candidates see those in front of them.
    reference_compat: names of what shall be as in the published code:
      'batch_normaliser' divides by the longest sequence of the batch,
      'context_by_candidates' counts candidates among `min_context_events`,
      'listwise_in_training' scores listwise candidates by themselves outside
      of the training, 'oldest_events' reads the first `data.max_history` events
      of a longer history and not the latest, 'pi_3_14' has 3.14 for pi in the
      times of the week, 'time_clip_at_width' cuts the buckets of ages at
      `dim` - 1.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
    remat: whether the backward pass computes each layer anew instead of keeping
      its activations.
    implementation: backend of the attention; None is the best one here.
  """

  dim: int = 64
  table_dim: int = 0
  blocks: int = 2
  heads: int = 2
  dqk: int = 32
  dv: int = 32
  token_hidden: int = 128
  head_hidden: int = 128
  head_inputs: str = 'product'
  layout: str = 'summed'
  candidate_actions: bool = True
  joint_content: bool = False
  context_mlps: bool = False
  action_dim: int = 8
  action_std: float = 0.1
  watch_times: tuple[tuple[float, int], ...] = ()
  max_history: int = 256
  max_candidates: int = 32
  min_context_events: int = 20
  token_scale: float | None = None
  context_mask: str = 'both'
  window: int | None = None
  full_tail: int = 0
  prefix: int = 0
  counted_from: str = 'request'
  positions: int | None = None
  time_buckets: int = 2048
  time_bucket_fn: str = 'sqrt'
  position_bias: bool = False
  time_bias: bool = False
  truncated_layers: int = 0
  truncated_to: int = 0
  skipped_layers: int = 0
  skip_rate: float = 0.5
  input_dropout: float = 0.2
  dropout: float = 0.1
  group_norm: bool = False
  gate: str = 'none'
  norm_eps: float = 1e-6
  alpha: float | None = None
  tied_start: bool = False
  normaliser: float | None = None
  postprocessor: str = 'layernorm'
  listwise: bool = False
  reference_compat: tuple[str, ...] = ()
  dtype: str = 'float32'
  remat: bool = False
  implementation: str | None = None

  def __post_init__(self):
    check_fields(
      self,
      head_inputs=HEAD_INPUTS,
      layout=LAYOUTS,
      context_mask=('both', 'causal'),
      counted_from=('request', 'start'),
      time_bucket_fn=('sqrt', 'log'),
      gate=('none', 'sigmoid', 'silu'),
      postprocessor=POSTPROCESSORS,
      dtype=DTYPES,
    )
    for name in self.reference_compat:
      if name not in QUIRKS:
        raise ValueError(
          f'model.reference_compat names {name!r}, must be some of {QUIRKS}'
        )
    for field in ('truncated_layers', 'skipped_layers'):
      if not 0 <= getattr(self, field) <= self.blocks:
        raise ValueError(
          f'model.{field}={getattr(self, field)}: there are '
          f'model.blocks={self.blocks} layers'
        )
    check_window(self)
    if self.truncated_layers and self.truncated_to < 1:
      raise ValueError(
        f'model.truncated_layers={self.truncated_layers} layers see '
        f'model.truncated_to={self.truncated_to} tokens of the history; give '
        'them one or more'
      )
    _check_watch_times('model.watch_times', self.watch_times)

  @property
  def row_dim(self) -> int:
    """Width of the rows of all tables."""
    return self.table_dim or self.dim

  @property
  def tokens_of_event(self) -> int:
    return 2 if self.layout == 'interleaved' else 1

  def longest(self, contextual: int) -> int:
    """Tokens of the longest sequence, with `contextual` tokens of context.

    It bounds sequences in training and in inference alike, so that what is
    divided by it does not depend on which of the two it is.
    """
    events = self.max_history + self.max_candidates
    return contextual + self.tokens_of_event * events


@dataclasses.dataclass(frozen=True)
class PooledRequests:
  """What `models.pooled_requests` tells a ranking model of a history.

  Attributes:
    pooling: 'mean' or 'sum' of the rows of the events that have a bit.
    unmarked: whether the events without any bit are pooled too, as one more.
    counts: whether the model sees the logarithm of how many events have each
      bit, as numbers.
    min_context_events: as in `STU`.
    watch_times: as in `STU`.
  """

  pooling: str = 'mean'
  unmarked: bool = False
  counts: bool = False
  min_context_events: int = 20
  watch_times: tuple[tuple[float, int], ...] = ()

  def __post_init__(self):
    if self.pooling not in ('mean', 'sum'):
      raise ValueError(
        f"model.history.pooling is {self.pooling!r}, must be 'mean' or 'sum'"
      )
    _check_watch_times('model.history.watch_times', self.watch_times)


def reads_oldest(model: Mapping) -> bool:
  """Whether `config.model` reads the oldest events of a long history."""
  return OLDEST_EVENTS in model.get('reference_compat', ())


def _check_watch_times(key: str, watch_times) -> None:
  for entry in watch_times:
    if not _is_watch_time(entry):
      raise ValueError(
        f'{key} holds {quote_value(entry)}, must be pairs of seconds and a bit'
      )
    seconds, bit = entry
    if bit < 1 or bit & (bit - 1):
      raise ValueError(
        f'{key} gives {seconds} seconds the bit {quote_value(bit)}, which is '
        'not a power of two; give 1, 2, 4, 8 and so on'
      )


def _is_watch_time(entry) -> bool:
  """Whether it is a pair of a number and a whole number of 32 bits."""
  if not isinstance(entry, tuple | list) or len(entry) != 2:
    return False
  seconds, bit = entry
  is_number = type(seconds) in (int, float) and 0 <= seconds < 2**31
  return is_number and type(bit) is int and bit < 2**31
