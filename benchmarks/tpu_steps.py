"""How many steps the TPU kernels take, and how many of them compute nothing.

  python -m benchmarks.tpu_steps

Counted from the lists that the kernels get, on any machine; nothing runs on a
TPU. Batches have 262,144 padded tokens, lengths uniform around a share of the
longest (`fill`), or log-normal with the deviation of MovieLens-1M: a fifth of
the longest in the mean, some cut there. `steps` are those of a group of
heads, over both parts; `idle` those that compute nothing. `rectangle` is the
grid that each kernel had before it got a list: its own blocks times the longest
range. `list_kb` is what the list takes of the memory for scalars, at most.
"""

import numpy as np

from benchmarks import cli, hstu_attention
from pallas_kernels.hstu_attention import shapes, tpu, tpu_layout, tpu_pairs
from pallas_kernels.hstu_attention.spec import Context, Spec, Tensors

COLUMNS = (
  'case', 'own_blocks', 'rectangle', 'steps', 'idle', 'x', 'list_kb',
)  # fmt: skip
LENGTHS = (256, 1_024, 8_192)
FILLS = (0.2, 0.5, 1.0)
LOG_NORMAL = 0.133  # median over longest, for a mean of a fifth
TOKENS = 262_144


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('tpu_steps', __doc__)
  parser.add_argument('--lengths', nargs='+', type=int, default=LENGTHS)
  args = parser.parse_args(argv)
  tokens = TOKENS
  if args.smoke:
    args.lengths, tokens = [512], 4_096
  rows = []
  for longest in args.lengths:
    for fill in FILLS:
      sizes = hstu_attention.lengths(tokens // longest, longest, fill)
      rows += count_steps(f'{longest}/{fill:g}', longest, sizes)
    sizes = shapes.lengths(
      shapes.Shape(
        tokens // longest, longest, heads=1, dqk=8, dv=8,
        median_len=round(LOG_NORMAL * longest),
      )
    )  # fmt: skip
    rows += count_steps(f'{longest}/log-normal', longest, sizes)
  cli.finish(args, 'tpu_steps', rows, COLUMNS)


def count_steps(name: str, longest: int, sizes: np.ndarray) -> list[dict]:
  """A row for the kernels by query block, and one for that by key block.

  Args:
    name: of the batch.
    longest: bound of the lengths.
    sizes: lengths.
  """
  spec = Spec(
    max_len=longest, max_queries=longest, mode='silu', alpha=1.0,
    normaliser=1.0, contextual=0, window=None, full_tail=0, dropout=0.0,
  )  # fmt: skip
  shape = shapes.Shape(len(sizes), max_len=longest, heads=1, dqk=8, dv=8)
  given = shapes.inputs(shape, dtype='bfloat16', sizes=sizes)
  tensors = Tensors(*(given[n] for n in 'qkv'), None, None)
  context = Context(given['lengths'], *[None] * 6)
  plan = tpu.make_plan(spec, tensors, context, interpret=False)
  tokens = tensors.q.shape[0]
  where = tpu_layout.layout(spec, plan, context, tokens, aligned=True)
  keys = tpu_layout.round_up(tokens, plan.block_k)
  call = tpu_layout.call(spec, plan, context, where, keys)
  return [
    {
      'case': f'{name}/{side}', 'longest': longest, 'side': side,
      'tokens': int(sizes.sum()), 'block_q': plan.block_q,
      'block_k': plan.block_k, **_count(pairs),
    }
    for side, pairs in (('query', call.by_query), ('key', call.by_key))
  ]  # fmt: skip


def _count(pairs: tpu_pairs.Pairs) -> dict:
  bounds = np.asarray(pairs.bounds)
  codes = pairs.codes[: bounds[-1]]
  own, _, is_seen = map(np.asarray, tpu_pairs.decode(codes))
  steps = int(np.diff(bounds).max()) * (len(bounds) - 1)
  counts = np.bincount(own)
  rectangle = len(counts) * int(counts.max())
  return {
    'own_blocks': len(counts), 'rectangle': rectangle, 'steps': steps,
    'idle': steps - int(is_seen.sum()), 'x': rectangle / steps,
    'list_kb': 4 * len(pairs.codes) / 1024,
  }  # fmt: skip


if __name__ == '__main__':
  main()
