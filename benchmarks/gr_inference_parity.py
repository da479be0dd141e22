"""Scores by what is kept of a history, beside those of one pass.

  python -m benchmarks.gr_inference_parity [--cases summed window ...]

A row is one variant of the model over a batch of requests. Scores of one pass
over history and candidates are compared with those of

  kept       the history once, then all candidates
  runs       the same, three candidates of each request at a time
  singly     the same, one candidate at a time
  appended   of histories to whose first half the second was added

as the largest difference, as a share of the largest score; `bits` says which
are equal to the bit. `bfloat16` is the difference where keys and values are
kept in bfloat16, and `pairs_moved` the share of pairs of candidates of a
request whose order it changes.
"""

import dataclasses

import jax
import numpy as np

from benchmarks import cli, gr_kept, gr_models, gr_parity, gr_requests
from genrec_jax.config.request_models import STU as Config
from genrec_jax.models import kept_requests

START = dict(counted_from='start')
# Case -> (whether requests have context, fields of the config).
CASES = {
  name: case for name, case in gr_parity.CASES.items() if name != 'listwise'
} | {
  'start': (True, dict(START, context_mask='causal')),
  'start_window': (True, dict(START, context_mask='causal', window=7)),
  'start_semi_local': (
    True, dict(START, context_mask='causal', window=7, prefix=5),
  ),
  'start_interleaved': (
    True, dict(START, context_mask='causal', layout='interleaved'),
  ),
  'start_biases': (
    False, dict(START, position_bias=True, time_bias=True),
  ),
}  # fmt: skip
EVENTS, CANDIDATES, RUN = (32, 10, 0, 20, 4), (8, 3, 2, 5, 1), 3
COLUMNS = (
  'case', 'kept', 'runs', 'singly', 'appended', 'bits', 'bfloat16',
  'pairs_moved',
)  # fmt: skip


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('gr_inference_parity', __doc__)
  parser.add_argument(
    '--cases', nargs='+', choices=CASES, default=None, help='all by default'
  )
  args = parser.parse_args(argv)
  names = args.cases or (['start'] if args.smoke else list(CASES))
  sizes = gr_parity.SIZES | (gr_parity.SMOKE if args.smoke else {})
  # GPUs would multiply float32 as TF32.
  with jax.default_matmul_precision('highest'):
    rows = [compare(name, sizes) for name in names]
  notes = [
    'appended: of models in which a new event changes nothing of the others '
    "(model.counted_from='start', causal context).",
  ]
  cli.finish(args, 'gr_inference_parity', rows, COLUMNS, notes)


def compare(name: str, sizes: dict) -> dict:
  """The row of a variant."""
  has_context, fields = CASES[name]
  spec = gr_requests.SPEC
  if not has_context:
    spec = dataclasses.replace(spec, context=())
  config = Config(**(sizes | fields))
  model = gr_models.build(config, spec)
  requests = [
    gr_requests.draw(*size, seed, spec)
    for seed, size in enumerate(zip(EVENTS, CANDIDATES, strict=True))
  ]
  batch = model.pack(requests, sum(EVENTS), sum(CANDIDATES))
  whole = model.score(model.params, model.read(batch), batch)
  wanted = join({n: np.asarray(x) for n, x in whole.items()})
  kept = gr_kept.keep(model, requests)
  ways = {
    'kept': score(model, requests, kept, max(CANDIDATES)),
    'runs': score(model, requests, kept, RUN),
    'singly': score(model, requests, kept, 1),
  }
  if not kept_requests.explain_rebuilding(config, model.model.slots):
    half = [len(r.history['age']) // 2 for r in requests]
    longer = []
    for request, own in zip(requests, half, strict=True):
      first = gr_kept.keep(
        model, [gr_kept.cut(request, 'history', slice(0, own))]
      )
      more = gr_kept.extend(model, [request], first, own) if own else None
      longer.append(
        np.concatenate([first[0], more[0]])
        if own
        else gr_kept.keep(model, [request])[0]
      )
    ways['appended'] = score(model, requests, longer, max(CANDIDATES))
  scale = np.abs(wanted).max()
  row = {'case': name}
  row |= {n: float(np.abs(x - wanted).max() / scale) for n, x in ways.items()}
  equal = [n for n, x in ways.items() if np.array_equal(x, wanted)]
  row['bits'] = ', '.join(equal) or 'none'
  narrow = score(
    model, requests, gr_kept.keep(model, requests, 'bfloat16'), max(CANDIDATES)
  )
  row['bfloat16'] = float(np.abs(narrow - wanted).max() / scale)
  return row | {'pairs_moved': count_moved(wanted, narrow)}


def score(model, requests, kept, size: int) -> np.ndarray:
  """`[K, L]` scores, `size` candidates of each request at a time."""
  parts = [[] for _ in requests]
  for start in range(0, max(CANDIDATES), size):
    some = [
      gr_kept.cut(r, 'candidates', slice(start, start + size)) for r in requests
    ]
    counts = [len(r.candidates['weight']) for r in some]
    room = size * len(requests)
    tokens = sum(map(len, kept)) + room
    found = join(gr_kept.score(model, some, kept, room, tokens))
    for part, own in zip(parts, np.split(found, np.cumsum(counts)[:-1])):
      part.append(own)
  return np.concatenate([np.concatenate(part) for part in parts])


def join(scores: dict) -> np.ndarray:
  return np.stack([scores[n] for n in sorted(scores)], axis=1)


def count_moved(wanted: np.ndarray, found: np.ndarray) -> float:
  """Share of pairs of candidates of a request whose order differs."""
  moved = total = 0
  ends = np.cumsum(CANDIDATES)[:-1]
  for a, b in zip(np.split(wanted, ends), np.split(found, ends), strict=True):
    i, j = np.triu_indices(len(a), 1)
    moved += (np.sign(a[i] - a[j]) != np.sign(b[i] - b[j])).sum()
    total += len(i) * a.shape[1]
  return float(moved / total)


if __name__ == '__main__':
  main()
