"""Names and shapes of published models, and where the same numbers stand here.

| name                  | what                                               |
|-----------------------|----------------------------------------------------|
| `hstu`                | HSTU of meta-recsys/generative-recommenders,       |
|                       | research/modeling/sequential/hstu.py               |
| `sasrec`              | SASRec of the same, research/.../sasrec.py         |
| `sasrec_pytorch`      | pmixer/SASRec.pytorch up to June 2024              |
| `sasrec_pytorch_2024` | the same from then to May 2025, which has one more |
|                       | position, for padding                              |

A model is a list of `Pair`s: one published array, the arrays here that hold the
same numbers, and how the one becomes the others and back. PyTorch keeps its
matrices as [out, in]; here they are [in, out].
"""

import dataclasses
import re
from collections.abc import Callable, Mapping

import numpy as np

from genrec_jax.data.quoting import escape
from genrec_jax.weights.safetensors import WeightsError

ITEMS = 'tables/items'
POSITION = 'params/position'
TIME_BUCKETS = 129  # of every published HSTU
Array = np.ndarray
Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Pair:
  """A published array, and the arrays here that hold its numbers.

  Attributes:
    published: its name there.
    shape: its shape there.
    own: names here; none where it holds no weights.
    split: its value there -> the values here.
    join: the values here -> its value there.
  """

  published: str
  shape: tuple[int, ...]
  own: tuple[str, ...]
  split: Callable[[Array], tuple[Array, ...]]
  join: Callable[..., Array]


@dataclasses.dataclass(frozen=True)
class Sizes:
  """What the shapes of a model follow from.

  Attributes:
    rows: of the item table, the one for padding included.
    dim: width of a token.
    positions: rows of the position table here.
    blocks: number of layers.
    hidden: columns of U, V, Q and K together; the feed-forward net's width.
    gated: width of what enters HSTU's output projection.
  """

  rows: int
  dim: int
  positions: int
  blocks: int
  hidden: int
  gated: int = 0


@dataclasses.dataclass(frozen=True)
class Published:
  """A published model.

  Attributes:
    make_pairs: all of its arrays, for some sizes.
    measure: its sizes, from the shapes of its arrays there.
    measure_own: the same, from the shapes of the arrays here.
    describe: what a config section must say for the weights to mean the same.
  """

  make_pairs: Callable[[Sizes], list[Pair]]
  measure: Callable[[Shapes], Sizes]
  measure_own: Callable[[Shapes], Sizes]
  describe: Callable[[Sizes], str]


# ---- Kinds of pairs ----------------------------------------------------------


def rename_array(published: str, own: str, *shape: int) -> Pair:
  """The same array under another name."""
  return Pair(published, shape, (own,), lambda x: (x,), lambda x: x)


def transpose_matrix(published: str, own: str, wide: int, narrow: int) -> Pair:
  """A matrix [out, in]."""
  return Pair(
    published, (wide, narrow), (own,), lambda x: (x.T,), lambda x: x.T
  )


def unfold_matrix(published: str, own: str, wide: int, narrow: int) -> Pair:
  """A matrix as a convolution of width one, [out, in, 1]."""
  return Pair(
    published,
    (wide, narrow, 1),
    (own,),
    lambda x: (x[..., 0].T,),
    lambda x: x.T[..., None],
  )


def separate_matrices(
  published: str, owns: tuple[str, ...], dim: int, *more: int
) -> Pair:
  """Query, key and value on top of each other; matrices are [out, in]."""
  return Pair(
    published,
    (len(owns) * dim, *more),
    owns,
    lambda x: tuple(part.T for part in np.split(np.asarray(x), len(owns))),
    lambda *parts: np.concatenate([part.T for part in parts]),
  )


def expect_mask(published: str, positions: int) -> Pair:
  """The causal mask, which the published models save although it is constant.

  It is made when it is needed: a file may lie about the number of positions.
  """

  def make_mask() -> Array:
    # True where a query (row) must not see a key (column).
    return np.triu(np.ones((positions, positions), bool), 1)

  def check_mask(x: Array):
    if not np.array_equal(x, make_mask()):
      raise WeightsError(
        f'{published} holds other values than the published model gives it'
      )
    return ()

  return Pair(published, (positions, positions), (), check_mask, make_mask)


# ---- generative-recommenders -------------------------------------------------


def _pair_embeddings(sizes: Sizes) -> list[Pair]:
  return [
    rename_array(
      '_embedding_module._item_emb.weight', ITEMS, sizes.rows, sizes.dim
    ),
    rename_array(
      '_input_features_preproc._pos_emb.weight',
      POSITION,
      sizes.positions,
      sizes.dim,
    ),
    expect_mask('_attn_mask', sizes.positions),
  ]


def _pair_hstu(sizes: Sizes) -> list[Pair]:
  pairs = _pair_embeddings(sizes)
  for i in range(sizes.blocks):
    there, here = f'_hstu._attention_layers.{i}', f'params/layer_{i}'
    pairs += [
      # The one matrix that is [in, out] there too: columns U, V, Q, K, and
      # the heads one after the other in each.
      rename_array(
        f'{there}._uvqk', f'{here}/uvqk/kernel', sizes.dim, sizes.hidden
      ),
      transpose_matrix(
        f'{there}._o.weight', f'{here}/output/kernel', sizes.dim, sizes.gated
      ),
      rename_array(f'{there}._o.bias', f'{here}/output/bias', sizes.dim),
      # Both count from n - 1 places back to n - 1 places ahead.
      rename_array(
        f'{there}._rel_attn_bias._pos_w',
        f'{here}/position_bias',
        2 * sizes.positions - 1,
      ),
      rename_array(
        f'{there}._rel_attn_bias._ts_w', f'{here}/time_bias', TIME_BUCKETS
      ),
    ]
  return pairs


def _measure_hstu(shapes: Shapes) -> Sizes:
  rows, dim = _find_shape(shapes, '_embedding_module._item_emb.weight', 2)
  layer = '_hstu._attention_layers.'
  return Sizes(
    rows,
    dim,
    _find_shape(shapes, '_input_features_preproc._pos_emb.weight', 2)[0],
    _count_blocks(shapes, layer),
    hidden=_find_shape(shapes, f'{layer}0._uvqk', 2)[1],
    gated=_find_shape(shapes, f'{layer}0._o.weight', 2)[1],
  )


def _measure_own_hstu(shapes: Shapes) -> Sizes:
  rows, dim = _find_shape(shapes, ITEMS, 2)
  return Sizes(
    rows,
    dim,
    _find_shape(shapes, POSITION, 2)[0],
    _count_blocks(shapes, 'params/layer_'),
    hidden=_find_shape(shapes, 'params/layer_0/uvqk/kernel', 2)[1],
    gated=_find_shape(shapes, 'params/layer_0/output/kernel', 2)[0],
  )


def _describe_hstu(sizes: Sizes) -> str:
  keys = (sizes.hidden - 2 * sizes.gated) // 2
  text = (
    f"model.name='hstu', dim={sizes.dim}, blocks={sizes.blocks}, heads x dv = "
    f'{sizes.gated}, heads x dqk = {keys}, max_len + extra_positions = '
    f'{sizes.positions}'
  )
  if sizes.gated % 3:
    return text
  values = sizes.gated // 3  # where U, LN(A) and their product enter together
  keys = (sizes.hidden - 2 * values) // 2
  return (
    f"{text}; or, with concat_ua there and concat='u_a_ua' here, heads x dv = "
    f'{values}, heads x dqk = {keys}'
  )


def _pair_sasrec(sizes: Sizes) -> list[Pair]:
  pairs = _pair_embeddings(sizes)
  for i in range(sizes.blocks):
    there, here = f'forward_layers.{i}._conv1d', f'params/layer_{i}'
    pairs += _pair_attention(f'attention_layers.{i}', here, sizes.dim)
    pairs += _pair_feed_forward((f'{there}.0', f'{there}.3'), here, sizes)
  return pairs


def _measure_sasrec(shapes: Shapes) -> Sizes:
  rows, dim = _find_shape(shapes, '_embedding_module._item_emb.weight', 2)
  return Sizes(
    rows,
    dim,
    _find_shape(shapes, '_input_features_preproc._pos_emb.weight', 2)[0],
    _count_blocks(shapes, 'attention_layers.'),
    hidden=_find_shape(shapes, 'forward_layers.0._conv1d.0.weight', 3)[0],
  )


def _measure_own_sasrec(shapes: Shapes) -> Sizes:
  rows, dim = _find_shape(shapes, ITEMS, 2)
  return Sizes(
    rows,
    dim,
    _find_shape(shapes, POSITION, 2)[0],
    _count_blocks(shapes, 'params/layer_'),
    hidden=_find_shape(shapes, 'params/layer_0/hidden/kernel', 2)[1],
  )


def _describe_sasrec(sizes: Sizes) -> str:
  return (
    f"model.name='sasrec', dim={sizes.dim}, blocks={sizes.blocks}, "
    f'ffn_dim={sizes.hidden}, max_len + extra_positions = {sizes.positions}'
  )


def _pair_attention(there: str, here: str, dim: int) -> list[Pair]:
  """`torch.nn.MultiheadAttention`."""
  parts = ('query', 'key', 'value')
  kernels = tuple(f'{here}/{part}/kernel' for part in parts)
  biases = tuple(f'{here}/{part}/bias' for part in parts)
  return [
    separate_matrices(f'{there}.in_proj_weight', kernels, dim, dim),
    separate_matrices(f'{there}.in_proj_bias', biases, dim),
    transpose_matrix(
      f'{there}.out_proj.weight', f'{here}/project/kernel', dim, dim
    ),
    rename_array(f'{there}.out_proj.bias', f'{here}/project/bias', dim),
  ]


def _pair_feed_forward(there: tuple[str, str], here: str, sizes: Sizes):
  first, second = there
  dim, hidden = sizes.dim, sizes.hidden
  return [
    unfold_matrix(f'{first}.weight', f'{here}/hidden/kernel', hidden, dim),
    rename_array(f'{first}.bias', f'{here}/hidden/bias', hidden),
    unfold_matrix(f'{second}.weight', f'{here}/out/kernel', dim, hidden),
    rename_array(f'{second}.bias', f'{here}/out/bias', dim),
  ]


# ---- SASRec.pytorch ----------------------------------------------------------


def _pair_norm(there: str, here: str, dim: int) -> list[Pair]:
  return [
    rename_array(f'{there}.weight', f'{here}/scale', dim),
    rename_array(f'{there}.bias', f'{here}/shift', dim),
  ]


def _reverse_positions(sizes: Sizes, padded: bool) -> Pair:
  """Histories are filled up on the left there: the newest item stands last."""
  first = int(padded)

  def split_positions(x: Array):
    if np.any(x[:first]):
      raise WeightsError(
        'pos_emb.weight: the position of padding is not zero, as this version '
        'of SASRec.pytorch keeps it'
      )
    return (x[first:][::-1],)

  def join_positions(x: Array):
    return np.concatenate([np.zeros((first, *x.shape[1:]), x.dtype), x[::-1]])

  shape = (sizes.positions + first, sizes.dim)
  return Pair(
    'pos_emb.weight', shape, (POSITION,), split_positions, join_positions
  )


def _pair_classic(sizes: Sizes, padded: bool) -> list[Pair]:
  pairs = [
    rename_array('item_emb.weight', ITEMS, sizes.rows, sizes.dim),
    _reverse_positions(sizes, padded),
    *_pair_norm('last_layernorm', 'params/norm', sizes.dim),
  ]
  for i in range(sizes.blocks):
    there, here = f'forward_layers.{i}', f'params/layer_{i}'
    pairs += [
      *_pair_norm(f'attention_layernorms.{i}', f'{here}/norm_query', sizes.dim),
      *_pair_attention(f'attention_layers.{i}', here, sizes.dim),
      *_pair_norm(f'forward_layernorms.{i}', f'{here}/norm_ffn', sizes.dim),
      *_pair_feed_forward((f'{there}.conv1', f'{there}.conv2'), here, sizes),
    ]
  return pairs


def _measure_classic(shapes: Shapes, padded: bool) -> Sizes:
  rows, dim = _find_shape(shapes, 'item_emb.weight', 2)
  positions = _find_shape(shapes, 'pos_emb.weight', 2)[0] - int(padded)
  blocks = _count_blocks(shapes, 'attention_layers.')
  return Sizes(rows, dim, positions, blocks, hidden=dim)


def _describe_classic(sizes: Sizes) -> str:
  return (
    f'{_describe_sasrec(sizes)}, extra_positions=0, norm_affine=True, '
    "final_norm=True, positions_from='newest'; loss.l2_normalize=False, "
    'loss.temperature=1'
  )


def _make_classic(padded: bool) -> Published:
  return Published(
    lambda sizes: _pair_classic(sizes, padded),
    lambda shapes: _measure_classic(shapes, padded),
    _measure_own_sasrec,
    _describe_classic,
  )


MODELS = {
  'hstu': Published(
    _pair_hstu, _measure_hstu, _measure_own_hstu, _describe_hstu
  ),
  'sasrec': Published(
    _pair_sasrec, _measure_sasrec, _measure_own_sasrec, _describe_sasrec
  ),
  'sasrec_pytorch': _make_classic(padded=False),
  'sasrec_pytorch_2024': _make_classic(padded=True),
}


# ---- Sizes -------------------------------------------------------------------


def _find_shape(shapes: Shapes, name: str, axes: int) -> tuple[int, ...]:
  """The shape of an array that the sizes are read off."""
  shape = shapes.get(name)
  if shape is None or len(shape) != axes:
    what = 'is missing' if shape is None else f'has the shape {shape}'
    some = ', '.join(map(escape, sorted(shapes)[:6]))
    raise WeightsError(
      f'{name} {what}: is this a checkpoint of another model? It holds {some}'
      f'{", ..." if len(shapes) > 6 else ""}'
    )
  return shape


def _count_blocks(shapes: Shapes, start: str) -> int:
  """How many layers there are; names tell where their numbers have gaps."""
  layer = re.compile(re.escape(start) + r'(\d+)\b')
  return len({m[1] for name in shapes if (m := layer.match(name))})
