"""STU beside its oracle, and what must not change a score at all.

  python -m benchmarks.gr_parity [--cases summed interleaved ...]

A row is one variant of the model over a batch of requests. The oracle
(`benchmarks/gr_oracle.py`) scores one request at a time, token by token, in
NumPy and float64, with exact derivatives; the model packs all requests into one
array, in float32. Weights are away from their initial values.
"""

import dataclasses

import jax
import numpy as np

from benchmarks import cli, gr_models, gr_requests
from genrec_jax.config.request_models import STU as Config

SIZES = dict(
  dim=32,
  heads=2,
  dqk=16,
  dv=16,
  blocks=2,
  token_hidden=24,
  head_hidden=24,
  max_history=32,
  max_candidates=8,
  min_context_events=5,
  postprocessor='timestamp',
)
SMOKE = dict(
  dim=8, heads=2, dqk=4, dv=4, blocks=1, token_hidden=6, head_hidden=6
)
ALL = dict(window=7, truncated_layers=1, truncated_to=9)
# Case -> (whether requests have context, fields of the config).
CASES = {
  'summed': (False, {}),
  'context': (True, {}),
  'causal_context': (True, dict(context_mask='causal')),
  'window': (True, dict(window=7)),
  'window_full_tail': (True, dict(window=7, full_tail=4)),
  'semi_local': (True, dict(window=7, prefix=5)),
  'semi_local_causal': (
    True,
    dict(window=6, prefix=3, context_mask='causal'),
  ),
  'truncated': (True, dict(truncated_layers=1, truncated_to=9)),
  'group_norm': (True, dict(group_norm=True)),
  'no_actions': (True, dict(layout='no_actions')),
  'interleaved': (True, dict(layout='interleaved')),
  'interleaved_all': (True, dict(ALL, layout='interleaved')),
  'joint_content': (True, dict(joint_content=True, token_scale=1.0)),
  'head_inputs': (True, dict(head_inputs='all')),
  'context_mlps': (True, dict(ALL, layout='interleaved', context_mlps=True)),
  'biases': (True, dict(position_bias=True, time_bias=True)),
  'listwise': (True, dict(listwise=True)),
}
EVENTS, CANDIDATES = (32, 9, 0, 20, 3), (8, 3, 2, 5, 1)
ROOM = 80, 24
COLUMNS = (
  'case', 'tokens', 'block', 'encoder', 'scores', 'loss', 'gradients',
  'training_layout', 'swap_exact', 'company_exact',
)  # fmt: skip
NOTES = (
  'block, encoder, scores, loss: the largest difference from the oracle, '
  'as a share of the largest number, of the tokens behind the first layer, of '
  'those behind all layers, of the scores of all labels, of the loss. '
  'gradients: the largest error of any parameter or table, along random '
  "directions, as a share of its gradient's norm.",
  'training_layout: between the scores of both layouts, where the candidates '
  'of the training have a token for their action; training gradients are '
  'those of that layout.',
  'swap_exact: two candidates that change places change scores and gradients '
  'of their rows, to the bit; company_exact: a request alone in a batch has '
  'the scores it has among others, to the bit. Listwise candidates see each '
  'other, and are not swapped.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('gr_parity', __doc__)
  parser.add_argument(
    '--cases', nargs='+', choices=CASES, default=None, help='all by default'
  )
  args = parser.parse_args(argv)
  names = args.cases or (['summed'] if args.smoke else list(CASES))
  sizes = SIZES | SMOKE if args.smoke else SIZES
  # GPUs would multiply float32 as TF32.
  with jax.default_matmul_precision('highest'):
    rows = [compare(name, sizes) for name in names]
  cli.finish(args, 'gr_parity', rows, COLUMNS, NOTES)


def compare(name: str, sizes: dict) -> dict:
  """One case."""
  with_context, options = CASES[name]
  spec = gr_requests.SPEC
  if not with_context:
    spec = dataclasses.replace(spec, context=())
  config = Config(**(sizes | options))
  train = config.layout == 'interleaved'
  model = gr_models.build(config, spec, train)
  requests = [
    gr_requests.draw(*size, seed, spec)
    for seed, size in enumerate(zip(EVENTS, CANDIDATES, strict=True))
  ]
  batch = model.pack(requests, *ROOM)
  scores, loss, (params_grad, rows_grad) = model.run(
    model.params, model.read(batch), batch
  )
  scores = join(scores)
  oracle = model.oracle()
  expected = np.concatenate([join(oracle.score(r, train)) for r in requests])
  tables_grad = model.add_up_rows(rows_grad, batch)
  apart = gr_models.compare_gradients(
    model, requests, params_grad, tables_grad, train
  )
  tokens, block, encoder = compare_tokens(model, requests, batch, train)
  row = {
    'case': name,
    'tokens': tokens,
    'block': block,
    'encoder': encoder,
    'scores': differ(scores[: len(expected)], expected),
    'loss': differ(loss, oracle.loss(requests, train)),
    'gradients': max(apart.values()),
    'company_exact': is_alone_the_same(model, requests, scores),
  }
  if train:
    inferred = gr_models.build(config, spec)
    other = inferred.run(model.params, model.read(batch), batch)[0]
    row['training_layout'] = differ(
      join(other)[: len(expected)], scores[: len(expected)]
    )
  if not config.listwise:
    row['swap_exact'] = is_swap_exact(model, requests, scores, rows_grad)
  return row


def join(scores) -> np.ndarray:
  """`[K, labels]`."""
  return np.stack([np.asarray(scores[n]) for n in sorted(scores)], axis=1)


def differ(found, expected) -> float:
  """Largest difference, as a share of the largest number."""
  found, expected = np.asarray(found, np.float64), np.asarray(expected)
  return float(np.abs(found - expected).max() / np.abs(expected).max())


def compare_tokens(model, requests, batch, train) -> tuple[int, float, float]:
  """How many tokens, and how far they are off behind one and all layers."""

  @jax.jit
  def encode(params, rows, batch):
    made = model.make(params)
    x, sequences = made.prepare(rows, batch, None, train)
    listwise = model.config.listwise
    events = sequences.as_events()
    targets = None if listwise else sequences.candidates
    one = made.stack.layer_0(x, events, None, targets)
    return one, made.encode(x, sequences, None, train)

  found = encode(model.params, model.read(batch), batch)
  oracle = model.oracle()
  expected = [], []
  for request in requests:
    tokens = oracle.make_tokens(request, train)
    expected[0].extend(oracle.run_layer(0, tokens, train, None))
    tokens = oracle.run_layers(list(tokens), train, None)
    expected[1].extend(token.x for token in tokens)
  count = len(expected[0])
  return count, *(
    differ(x[:count], np.stack(y)) for x, y in zip(found, expected, strict=True)
  )


def is_swap_exact(model, requests, scores, rows_grad) -> bool:
  """Whether two candidates of the first request may change places."""
  order = np.arange(len(scores))
  order[[1, 6]] = [6, 1]
  swapped = [requests[0].reorder(order[: CANDIDATES[0]]), *requests[1:]]
  batch = model.pack(swapped, *ROOM)
  other, _, (_, grads) = model.run(model.params, model.read(batch), batch)
  real = sum(CANDIDATES)
  same = np.array_equal(join(other)[:real], scores[order][:real])
  for name, grad in grads.items():
    if name.startswith('candidates.'):
      grad, before = np.asarray(grad), np.asarray(rows_grad[name])
      same &= np.array_equal(grad[:real], before[order][:real])
  return bool(same)


def is_alone_the_same(model, requests, scores) -> bool:
  """Whether the fourth request has the same scores without the others."""
  alone = [None, requests[3], None, None, None]
  batch = model.pack(alone, *ROOM)
  other = model.run(model.params, model.read(batch), batch)[0]
  start, count = sum(CANDIDATES[:3]), CANDIDATES[3]
  return np.array_equal(join(other)[:count], scores[start : start + count])


if __name__ == '__main__':
  main()
