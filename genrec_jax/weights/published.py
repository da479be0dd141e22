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
    pairs: all of its arrays, for some sizes.
    sizes: its sizes, from the shapes of its arrays there.
    own_sizes: the same, from the shapes of the arrays here.
    fields: what a config section must say for the weights to mean the same.
  """

  pairs: Callable[[Sizes], list[Pair]]
  sizes: Callable[[Shapes], Sizes]
  own_sizes: Callable[[Shapes], Sizes]
  fields: Callable[[Sizes], str]


# ---- Kinds of pairs ----------------------------------------------------------


def same(published: str, own: str, *shape: int) -> Pair:
  """The same array under another name."""
  return Pair(published, shape, (own,), lambda x: (x,), lambda x: x)


def transposed(published: str, own: str, wide: int, narrow: int) -> Pair:
  """A matrix [out, in]."""
  return Pair(
    published, (wide, narrow), (own,), lambda x: (x.T,), lambda x: x.T
  )


def convolution(published: str, own: str, wide: int, narrow: int) -> Pair:
  """A matrix as a convolution of width one, [out, in, 1]."""
  return Pair(
    published,
    (wide, narrow, 1),
    (own,),
    lambda x: (x[..., 0].T,),
    lambda x: x.T[..., None],
  )


def fused(published: str, owns: tuple[str, ...], dim: int, *more: int) -> Pair:
  """Query, key and value on top of each other; matrices are [out, in]."""
  return Pair(
    published,
    (len(owns) * dim, *more),
    owns,
    lambda x: tuple(part.T for part in np.split(np.asarray(x), len(owns))),
    lambda *parts: np.concatenate([part.T for part in parts]),
  )


def constant(published: str, value: Array) -> Pair:
  """What a published model saves although nobody trains it."""

  def check(x: Array):
    if not np.array_equal(x, value):
      raise WeightsError(
        f'{published} holds other values than the published model gives it'
      )
    return ()

  return Pair(published, value.shape, (), check, lambda: value)


def _causal(positions: int) -> Array:
  """True where a query (row) must not see a key (column)."""
  return np.triu(np.ones((positions, positions), bool), 1)


# ---- generative-recommenders -------------------------------------------------


def _embeddings(sizes: Sizes) -> list[Pair]:
  return [
    same('_embedding_module._item_emb.weight', ITEMS, sizes.rows, sizes.dim),
    same(
      '_input_features_preproc._pos_emb.weight',
      POSITION,
      sizes.positions,
      sizes.dim,
    ),
    constant('_attn_mask', _causal(sizes.positions)),
  ]


def _hstu_pairs(sizes: Sizes) -> list[Pair]:
  pairs = _embeddings(sizes)
  for i in range(sizes.blocks):
    there, here = f'_hstu._attention_layers.{i}', f'params/layer_{i}'
    pairs += [
      # The one matrix that is [in, out] there too: columns U, V, Q, K, and
      # the heads one after the other in each.
      same(f'{there}._uvqk', f'{here}/uvqk/kernel', sizes.dim, sizes.hidden),
      transposed(
        f'{there}._o.weight', f'{here}/output/kernel', sizes.dim, sizes.gated
      ),
      same(f'{there}._o.bias', f'{here}/output/bias', sizes.dim),
      # Both count from n - 1 places back to n - 1 places ahead.
      same(
        f'{there}._rel_attn_bias._pos_w',
        f'{here}/position_bias',
        2 * sizes.positions - 1,
      ),
      same(f'{there}._rel_attn_bias._ts_w', f'{here}/time_bias', TIME_BUCKETS),
    ]
  return pairs


def _hstu_sizes(shapes: Shapes) -> Sizes:
  rows, dim = _shape(shapes, '_embedding_module._item_emb.weight', 2)
  layer = '_hstu._attention_layers.'
  return Sizes(
    rows,
    dim,
    _shape(shapes, '_input_features_preproc._pos_emb.weight', 2)[0],
    _blocks(shapes, layer),
    hidden=_shape(shapes, f'{layer}0._uvqk', 2)[1],
    gated=_shape(shapes, f'{layer}0._o.weight', 2)[1],
  )


def _own_hstu_sizes(shapes: Shapes) -> Sizes:
  rows, dim = _shape(shapes, ITEMS, 2)
  return Sizes(
    rows,
    dim,
    _shape(shapes, POSITION, 2)[0],
    _blocks(shapes, 'params/layer_'),
    hidden=_shape(shapes, 'params/layer_0/uvqk/kernel', 2)[1],
    gated=_shape(shapes, 'params/layer_0/output/kernel', 2)[0],
  )


def _hstu_fields(sizes: Sizes) -> str:
  keys = (sizes.hidden - 2 * sizes.gated) // 2
  return (
    f"model.name='hstu', dim={sizes.dim}, blocks={sizes.blocks}, heads x dv = "
    f'{sizes.gated}, heads x dqk = {keys}, max_len + extra_positions = '
    f'{sizes.positions} (with concat_ua: a third of {sizes.gated} for heads x '
    "dv, and concat='u_a_ua')"
  )


def _sasrec_pairs(sizes: Sizes) -> list[Pair]:
  pairs = _embeddings(sizes)
  for i in range(sizes.blocks):
    there, here = f'forward_layers.{i}._conv1d', f'params/layer_{i}'
    pairs += _attention(f'attention_layers.{i}', here, sizes.dim)
    pairs += _feed_forward((f'{there}.0', f'{there}.3'), here, sizes)
  return pairs


def _sasrec_sizes(shapes: Shapes) -> Sizes:
  rows, dim = _shape(shapes, '_embedding_module._item_emb.weight', 2)
  return Sizes(
    rows,
    dim,
    _shape(shapes, '_input_features_preproc._pos_emb.weight', 2)[0],
    _blocks(shapes, 'attention_layers.'),
    hidden=_shape(shapes, 'forward_layers.0._conv1d.0.weight', 3)[0],
  )


def _own_sasrec_sizes(shapes: Shapes) -> Sizes:
  rows, dim = _shape(shapes, ITEMS, 2)
  return Sizes(
    rows,
    dim,
    _shape(shapes, POSITION, 2)[0],
    _blocks(shapes, 'params/layer_'),
    hidden=_shape(shapes, 'params/layer_0/hidden/kernel', 2)[1],
  )


def _sasrec_fields(sizes: Sizes) -> str:
  return (
    f"model.name='sasrec', dim={sizes.dim}, blocks={sizes.blocks}, "
    f'ffn_dim={sizes.hidden}, max_len + extra_positions = {sizes.positions}'
  )


def _attention(there: str, here: str, dim: int) -> list[Pair]:
  """`torch.nn.MultiheadAttention`."""
  parts = ('query', 'key', 'value')
  kernels = tuple(f'{here}/{part}/kernel' for part in parts)
  biases = tuple(f'{here}/{part}/bias' for part in parts)
  return [
    fused(f'{there}.in_proj_weight', kernels, dim, dim),
    fused(f'{there}.in_proj_bias', biases, dim),
    transposed(f'{there}.out_proj.weight', f'{here}/project/kernel', dim, dim),
    same(f'{there}.out_proj.bias', f'{here}/project/bias', dim),
  ]


def _feed_forward(there: tuple[str, str], here: str, sizes: Sizes):
  first, second = there
  dim, hidden = sizes.dim, sizes.hidden
  return [
    convolution(f'{first}.weight', f'{here}/hidden/kernel', hidden, dim),
    same(f'{first}.bias', f'{here}/hidden/bias', hidden),
    convolution(f'{second}.weight', f'{here}/out/kernel', dim, hidden),
    same(f'{second}.bias', f'{here}/out/bias', dim),
  ]


# ---- SASRec.pytorch ----------------------------------------------------------


def _norm(there: str, here: str, dim: int) -> list[Pair]:
  return [
    same(f'{there}.weight', f'{here}/scale', dim),
    same(f'{there}.bias', f'{here}/shift', dim),
  ]


def _positions_from_the_end(sizes: Sizes, padded: bool) -> Pair:
  """Histories are filled up on the left there: the newest item stands last."""
  first = int(padded)

  def split(x: Array):
    if np.any(x[:first]):
      raise WeightsError(
        'pos_emb.weight: the position of padding is not zero, as this version '
        'of SASRec.pytorch keeps it'
      )
    return (x[first:][::-1],)

  def join(x: Array):
    return np.concatenate([np.zeros((first, *x.shape[1:]), x.dtype), x[::-1]])

  shape = (sizes.positions + first, sizes.dim)
  return Pair('pos_emb.weight', shape, (POSITION,), split, join)


def _pmixer_pairs(sizes: Sizes, padded: bool) -> list[Pair]:
  pairs = [
    same('item_emb.weight', ITEMS, sizes.rows, sizes.dim),
    _positions_from_the_end(sizes, padded),
    *_norm('last_layernorm', 'params/norm', sizes.dim),
  ]
  for i in range(sizes.blocks):
    there, here = f'forward_layers.{i}', f'params/layer_{i}'
    pairs += [
      *_norm(f'attention_layernorms.{i}', f'{here}/norm_query', sizes.dim),
      *_attention(f'attention_layers.{i}', here, sizes.dim),
      *_norm(f'forward_layernorms.{i}', f'{here}/norm_ffn', sizes.dim),
      *_feed_forward((f'{there}.conv1', f'{there}.conv2'), here, sizes),
    ]
  return pairs


def _pmixer_sizes(shapes: Shapes, padded: bool) -> Sizes:
  rows, dim = _shape(shapes, 'item_emb.weight', 2)
  positions = _shape(shapes, 'pos_emb.weight', 2)[0] - int(padded)
  blocks = _blocks(shapes, 'attention_layers.')
  return Sizes(rows, dim, positions, blocks, hidden=dim)


def _pmixer_fields(sizes: Sizes) -> str:
  return (
    f'{_sasrec_fields(sizes)}, extra_positions=0, norm_affine=True, '
    "final_norm=True, positions_from='newest'; loss.l2_normalize=False, "
    'loss.temperature=1'
  )


def _pmixer(padded: bool) -> Published:
  return Published(
    lambda sizes: _pmixer_pairs(sizes, padded),
    lambda shapes: _pmixer_sizes(shapes, padded),
    _own_sasrec_sizes,
    _pmixer_fields,
  )


MODELS = {
  'hstu': Published(_hstu_pairs, _hstu_sizes, _own_hstu_sizes, _hstu_fields),
  'sasrec': Published(
    _sasrec_pairs, _sasrec_sizes, _own_sasrec_sizes, _sasrec_fields
  ),
  'sasrec_pytorch': _pmixer(padded=False),
  'sasrec_pytorch_2024': _pmixer(padded=True),
}


# ---- Sizes -------------------------------------------------------------------


def _shape(shapes: Shapes, name: str, axes: int) -> tuple[int, ...]:
  """The shape of an array that the sizes are read off."""
  shape = shapes.get(name)
  if shape is None or len(shape) != axes:
    what = 'is missing' if shape is None else f'has the shape {shape}'
    some = ', '.join(sorted(shapes)[:6])
    raise WeightsError(
      f'{name} {what}: is this a checkpoint of another model? It holds {some}'
      f'{", ..." if len(shapes) > 6 else ""}'
    )
  return shape


def _blocks(shapes: Shapes, start: str) -> int:
  """One more than the largest number of a layer."""
  layer = re.compile(re.escape(start) + r'(\d+)\b')
  numbers = [int(m[1]) for name in shapes if (m := layer.match(name))]
  return max(numbers, default=-1) + 1
