"""Every field of every model: its type, its default and what it means.

`config.hstu()`, `config.wukong()`, ... are sections with these fields. A model
in `genrec_jax.models` imports its class as its `Config`, and
docs/config_reference.md is generated from the classes.
"""

import dataclasses
from collections.abc import Mapping

from genrec_jax.config.model_fields import Towers, check_fields, check_window

DTYPES = ('float32', 'bfloat16')
# Whose first-order weights a value has: the feature's own, or its table's.
FIRST_ORDER = ('feature', 'table')


@dataclasses.dataclass(frozen=True)
class HSTU:
  """Sizes and variants of `models.hstu`.

  Attributes:
    dim: width D of an item row and of a token.
    blocks: number of layers.
    heads: attention heads.
    dqk: width of a query and of a key, per head.
    dv: width of a value (and of U), per head.
    max_len: longest sequence S; of a longer one the latest tokens count.
    extra_positions: rows of the position tables beyond `max_len`, 11 in the
      published code. The tables have n = max_len + extra_positions rows; n is
      the default normaliser, too.
    dropout: rate on the gated output of each layer.
    embedding_dropout: rate on the input tokens.
    attention: 'silu', or 'softmax' as an ablation.
    silu_on: SiLU is applied to 'all' of U, V, Q and K, to 'u' alone, or to
      'none'.
    concat: what enters the output projection. 'none' is `U*LN(A)`, 'u_a_ua' is
      `[U, LN(A), U*LN(A)]`, 'u_x_ux' is `[U, A, U*LN(A)]`.
    uvqk_bias: whether the input projection has a bias.
    out_bias: whether the output projection has a bias.
    ln_affine: whether the layer norms learn scale and shift.
    alpha: factor of q.k; None is 1 for silu and 1/sqrt(dqk) for softmax.
    normaliser: divisor of the SiLU scores; None is n.
    position_bias: whether there is a relative position bias.
    time_bias: whether there is a relative time bias, which needs timestamps.
    position_embedding: whether there are learned absolute positions.
    window: how many tokens a token looks back; None is any number.
    prefix: oldest tokens of a sequence that are seen from beyond the window.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
    remat: whether the backward pass computes each layer anew instead of keeping
      its activations.
    implementation: backend of the attention; None is the best one here.
  """

  dim: int = 50
  blocks: int = 2
  heads: int = 1
  dqk: int = 50
  dv: int = 50
  max_len: int = 200
  extra_positions: int = 11
  dropout: float = 0.2
  embedding_dropout: float = 0.2
  attention: str = 'silu'
  silu_on: str = 'all'
  concat: str = 'none'
  uvqk_bias: bool = False
  out_bias: bool = True
  ln_affine: bool = False
  alpha: float | None = None
  normaliser: float | None = None
  position_bias: bool = True
  time_bias: bool = True
  position_embedding: bool = True
  window: int | None = None
  prefix: int = 0
  dtype: str = 'float32'
  remat: bool = False
  implementation: str | None = None

  def __post_init__(self):
    check_fields(
      self,
      attention=('silu', 'softmax'),
      silu_on=('all', 'u', 'none'),
      concat=('none', 'u_a_ua', 'u_x_ux'),
      dtype=DTYPES,
    )
    check_window(self)

  @property
  def positions(self) -> int:
    return self.max_len + self.extra_positions


@dataclasses.dataclass(frozen=True)
class SASRec:
  """Sizes of `models.sasrec`.

  Attributes:
    dim: width D of an item row and of a token.
    blocks: number of layers.
    heads: attention heads; must divide `dim`.
    ffn_dim: hidden width of the feed-forward net.
    max_len: longest sequence S; of a longer one the latest tokens count.
    extra_positions: rows of the position table beyond `max_len`.
    dropout: rate on the attention weights and in the feed-forward net.
    embedding_dropout: rate on the input tokens.
    norm_eps: epsilon of the layer norms.
    norm_affine: whether the layer norms learn scale and shift.
    final_norm: whether a layer norm follows the last block.
    scale_rows: whether item rows are multiplied by sqrt(dim) at the input.
    positions_from: the token that has position 0, 'oldest' or 'newest'.
    position_std: deviation of the position table; None is 1/sqrt(dim).
    project: whether the attention ends with an output projection.
    activation: 'relu' or 'none', in the feed-forward net.
    init: how matrices start, 'xavier_normal', or 'fan_in_uniform' as in
      PyTorch's layers.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
    remat: whether the backward pass computes each layer anew instead of keeping
      its activations.
    implementation: backend of the attention; None is the best one here.
  """

  dim: int = 50
  blocks: int = 2
  heads: int = 1
  ffn_dim: int = 50
  max_len: int = 200
  extra_positions: int = 11
  dropout: float = 0.2
  embedding_dropout: float = 0.2
  norm_eps: float = 1e-8
  norm_affine: bool = False
  final_norm: bool = False
  scale_rows: bool = True
  positions_from: str = 'oldest'
  position_std: float | None = None
  project: bool = True
  activation: str = 'relu'
  init: str = 'xavier_normal'
  dtype: str = 'float32'
  remat: bool = False
  implementation: str | None = None

  def __post_init__(self):
    if self.dim % self.heads:
      raise ValueError(
        f'model.dim={self.dim} is not a multiple of model.heads={self.heads}'
      )
    check_fields(
      self,
      positions_from=('oldest', 'newest'),
      activation=('relu', 'none'),
      init=('xavier_normal', 'fan_in_uniform'),
      dtype=DTYPES,
    )

  @property
  def time_bias(self) -> bool:
    return False


@dataclasses.dataclass(frozen=True)
class LR:
  """Variants of `models.lr`.

  Attributes:
    first_order: whose first-order weights a value has. 'feature': each feature
      has weights of its own, and those of several values are summed, as in
      FuxiCTR; 'table': features that share a table share its weights, and those
      of several values are pooled as the feature says. Runs of before there was
      the key go on with 'table'.
  """

  first_order: str = 'feature'

  def __post_init__(self):
    check_fields(self, first_order=FIRST_ORDER)


@dataclasses.dataclass(frozen=True)
class FM:
  """Sizes of `models.fm`.

  Attributes:
    dim: width of all vectors.
    first_order: whose first-order weights a value has, its 'feature' or its
      'table'; see `models.LR`.
  """

  dim: int = 10
  first_order: str = 'feature'

  def __post_init__(self):
    check_fields(self, first_order=FIRST_ORDER)


@dataclasses.dataclass(frozen=True)
class DNN:
  """Sizes of `models.dnn`.

  Attributes:
    dim: width of all vectors.
    hidden: widths of the hidden layers.
    batch_norm: whether hidden layers are normalised over the batch.
    dropout: rate after each hidden layer.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
  """

  dim: int = 10
  hidden: tuple[int, ...] = (400, 400, 400)
  batch_norm: bool = True
  dropout: float = 0.0
  dtype: str = 'float32'

  def __post_init__(self):
    check_fields(self, dtype=DTYPES)


@dataclasses.dataclass(frozen=True)
class DeepFM(DNN):
  """Sizes of `models.deepfm`, those of `DNN` and one of `LR`.

  Attributes:
    first_order: whose first-order weights a value has, its 'feature' or its
      'table'; see `models.LR`.
  """

  first_order: str = 'feature'

  def __post_init__(self):
    super().__post_init__()
    check_fields(self, first_order=FIRST_ORDER)


_ENOUGH_FOR_PRODUCTS = 5  # vectors of DLRM, whose pairs are ten


@dataclasses.dataclass(frozen=True)
class DLRM(Towers):
  """Sizes of `models.dlrm`.

  Attributes:
    dim: width of all vectors.
    dims: feature -> width of its table, where it is another one. 'cat' takes
      these vectors as they are, 'dot' fills them up with zeros to `dim`.
    interaction: 'dot' multiplies pairs of vectors, 'cat' concatenates them;
      'auto' is 'dot' from five vectors on, which are the features, all numeric
      ones together being one, and below that 'cat', unless `itself` is set.
    itself: whether 'dot' takes the product of a vector with itself.
    bottom: hidden widths of the MLP over numbers; `dim` follows them.
    top: hidden widths of the MLP over interactions.
    batch_norm: whether hidden layers are normalised over the batch.
    dropout: rate after each hidden layer.
    init: how weights start, 'xavier_normal' (FuxiCTR) or 'dlrm'; see
      `mlp.make_linear`.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
  """

  dim: int = 10
  dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
  interaction: str = 'auto'
  itself: bool = False
  bottom: tuple[int, ...] = (400, 400, 400)
  top: tuple[int, ...] = (400, 400, 400)
  batch_norm: bool = True
  dropout: float = 0.0
  init: str = 'xavier_normal'
  dtype: str = 'float32'

  def __post_init__(self):
    super().__post_init__()
    check_fields(
      self,
      interaction=('auto', 'dot', 'cat'),
      init=('xavier_normal', 'dlrm'),
      dtype=DTYPES,
    )

  def choose_interaction(self, vectors: int) -> str:
    """'dot' or 'cat', for so many vectors.

    >>> DLRM().choose_interaction(2), DLRM().choose_interaction(26)
    ('cat', 'dot')

    Args:
      vectors: how many interact.
    """
    if self.interaction != 'auto':
      return self.interaction
    # The products of a few vectors say little by themselves: of two, one number
    # is all that the MLP above sees.
    return 'dot' if self.itself or vectors >= _ENOUGH_FOR_PRODUCTS else 'cat'


@dataclasses.dataclass(frozen=True)
class DCN(Towers):
  """Sizes of `models.dcn`.

  Attributes:
    dim: width of all vectors.
    structure: cross layers alone ('cross'), a deep part after them ('stacked'),
      beside them ('parallel'), or one of each ('stacked_parallel').
    cross: number of cross layers.
    rank: rank of the matrices of cross layers; 0 is full rank.
    experts: low-rank experts of a cross layer; 0 is one matrix without gate or
      tanh.
    share_gate: whether all cross layers have the same gate.
    hidden: widths of the hidden layers of the deep part.
    stacked_hidden: widths of the hidden layers behind the cross layers where
      there are two deep parts ('stacked_parallel'); () is `hidden`.
    bottom: hidden widths of an MLP that makes one vector of all numbers; ()
      gives each number a vector.
    batch_norm: whether hidden layers are normalised over the batch.
    dropout: rate after each hidden layer.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
  """

  dim: int = 10
  structure: str = 'parallel'
  cross: int = 3
  rank: int = 0
  experts: int = 0
  share_gate: bool = True
  hidden: tuple[int, ...] = (400, 400, 400)
  stacked_hidden: tuple[int, ...] = ()
  bottom: tuple[int, ...] = ()
  batch_norm: bool = True
  dropout: float = 0.0
  dtype: str = 'float32'

  def __post_init__(self):
    super().__post_init__()
    check_fields(
      self,
      structure=('cross', 'stacked', 'parallel', 'stacked_parallel'),
      dtype=DTYPES,
    )
    if self.experts and not self.rank:
      raise ValueError(
        f'model.experts={self.experts} are of low rank: set model.rank too'
      )


@dataclasses.dataclass(frozen=True)
class FinalMLP:
  """Sizes of `models.finalmlp`.

  Attributes:
    dim: width of all vectors.
    hidden1: hidden widths of the first stream.
    hidden2: hidden widths of the second stream.
    batch_norm: whether hidden layers of the streams are normalised over the
      batch.
    dropout1: rate after each hidden layer of the first stream.
    dropout2: rate after each hidden layer of the second stream.
    selection: whether gates weigh the features that each stream sees.
    context1: names of the features that set the gate of the first stream; () is
      a learned constant.
    context2: names of the features that set the gate of the second stream; ()
      is a learned constant.
    selection_hidden: hidden widths of the gates.
    heads: heads of the bilinear fusion; must divide the last width of both
      streams.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters stay float32.
  """

  dim: int = 10
  hidden1: tuple[int, ...] = (400,)
  hidden2: tuple[int, ...] = (100,)
  batch_norm: bool = True
  dropout1: float = 0.4
  dropout2: float = 0.4
  selection: bool = True
  context1: tuple[str, ...] = ()
  context2: tuple[str, ...] = ()
  selection_hidden: tuple[int, ...] = (400,)
  heads: int = 5
  dtype: str = 'float32'

  def __post_init__(self):
    check_fields(self, dtype=DTYPES)
    for field in ('hidden1', 'hidden2'):
      hidden = getattr(self, field)
      if not hidden or hidden[-1] % self.heads:
        raise ValueError(
          f'model.{field}={hidden} must end with a multiple of '
          f'model.heads={self.heads}'
        )

  @property
  def contexts(self) -> tuple[tuple[str, ...], ...]:
    """Names of the features of each gate."""
    return (self.context1, self.context2) if self.selection else ()


@dataclasses.dataclass(frozen=True)
class Wukong(Towers):
  """Sizes of `models.wukong`.

  Attributes:
    dim: width d of a vector.
    layers: number of layers l.
    fmb: rows n_F that a factorisation machine block makes; one number, or one
      for each layer (a pyramid).
    lcb: rows n_L that a linear compression block makes; one number, or one for
      each layer.
    rank: columns k of Y.
    fm: how interactions are computed, 'optimised' as X(X^T Y), 'full' as XX^T
      or 'triangular' as the half of XX^T that is not repeated, with the
      diagonal.
    attentive: whether Y is made from X; otherwise it is a parameter.
    compress: rows m of W_c X, the input of the MLP that makes Y.
    attention_hidden: hidden widths of the MLP that makes Y.
    fmb_hidden: hidden widths of a block's MLP.
    bottom: hidden widths of the MLP over numbers.
    number_vectors: vectors that the MLP over numbers gives.
    top: hidden widths of the MLP above the last layer.
    dropout: rate after hidden layers of the blocks' MLPs.
    top_dropout: rate after hidden layers of the top MLP.
    embedding_dropout: rate on X_0, the vectors below the first layer.
    norm_eps: epsilon of the layer norms.
    important: feature -> how many vectors it has.
    small: feature -> width of its table; these features are grouped and mapped
      to vectors.
    group_vectors: vectors that the group of the small features gives.
    group_hidden: hidden widths of the MLP of that group.
    last_relu: whether a block's MLP ends with a ReLU.
    residual_bias: whether a learned residual has a bias.
    fmb_batch_norm: whether hidden layers of the blocks' MLPs are normalised
      over the batch.
    top_batch_norm: whether hidden layers of the top MLP are normalised over
      the batch.
    zero: those of 'fmb', 'lcb' and 'residual' whose result is replaced by
      zeros; the parameters stay, so that a trained model can be evaluated
      without a part.
    dtype: 'float32' or 'bfloat16' arithmetic; parameters, factorisation
      machines and norms stay float32.
  """

  dim: int = 16
  layers: int = 2
  fmb: int | tuple[int, ...] = 8
  lcb: int | tuple[int, ...] = 8
  rank: int = 8
  fm: str = 'optimised'
  attentive: bool = True
  compress: int = 8
  attention_hidden: tuple[int, ...] = (64,)
  fmb_hidden: tuple[int, ...] = (256, 256)
  bottom: tuple[int, ...] = (512, 256)
  number_vectors: int = 1
  top: tuple[int, ...] = (256,)
  dropout: float = 0.0
  top_dropout: float = 0.0
  embedding_dropout: float = 0.0
  norm_eps: float = 1e-5
  important: Mapping[str, int] = dataclasses.field(default_factory=dict)
  small: Mapping[str, int] = dataclasses.field(default_factory=dict)
  group_vectors: int = 1
  group_hidden: tuple[int, ...] = (64,)
  last_relu: bool = False
  residual_bias: bool = False
  fmb_batch_norm: bool = False
  top_batch_norm: bool = False
  zero: tuple[str, ...] = ()
  dtype: str = 'float32'

  def __post_init__(self):
    super().__post_init__()
    check_fields(self, fm=('optimised', 'full', 'triangular'), dtype=DTYPES)
    for field in ('layers', 'rank'):
      if getattr(self, field) < 1:
        value = getattr(self, field)
        raise ValueError(f'model.{field}={value}: Wukong needs one or more')
    parts = ('fmb', 'lcb', 'residual')
    for part in self.zero:
      if part not in parts:
        raise ValueError(f'model.zero names {part!r}, must be some of {parts}')
    for field in ('fmb', 'lcb'):
      value = getattr(self, field)
      if not isinstance(value, int) and len(value) not in (1, self.layers):
        raise ValueError(
          f'model.{field}={value} has {len(value)} numbers for '
          f'model.layers={self.layers}; give one, or one for each layer'
        )

  def rows(self, field: str, layer: int) -> int:
    """n_F or n_L of a layer."""
    value = getattr(self, field)
    if isinstance(value, int):
      return value
    return value[layer] if len(value) > 1 else value[0]
