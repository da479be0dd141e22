"""Published checkpoints, imported, beside the modules that made them.

  python -m benchmarks.weights_parity --peer_python PATH \\
    --published CHECKOUT [--classic CHECKOUT] [--classic_2024 CHECKOUT]

PATH is a Python with PyTorch and NumPy (`benchmarks/peer_weights.py` runs in
it); CHECKOUT one of meta-recsys/generative-recommenders, and of SASRec.pytorch
as it was before and after June 2024. Modules of the sizes of ML-1M are built
there with weights away from their initial values, saved with torch.save, read
here without PyTorch, brought to the names of this library and to the state of a
run, as `train.init_from` does it. A row says how far the two are apart.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import cli
from genrec_jax import config as config_lib
from genrec_jax.contracts import weights_of
from genrec_jax.embedding.lookup import view_tables
from genrec_jax.features import EVENTS, Columns, Examples, Jagged
from genrec_jax.tasks.retrieval import ITEMS, Retrieval
from genrec_jax.train import optimizer, state
from genrec_jax.weights import convert, safetensors
from genrec_jax.weights.start import import_weights

PEER = pathlib.Path(__file__).parent / 'peer_weights.py'
LENGTHS = (200, 200, 37, 5, 1)
ROWS = {'published': 3953, 'classic': 3417}
SIZES = dict(dim=50, blocks=2, heads=1, max_len=200)
WIDE = dict(SIZES, extra_positions=11)
CLASSIC = dict(
  SIZES,
  ffn_dim=50,
  extra_positions=0,
  norm_affine=True,
  final_norm=True,
  positions_from='newest',
)
# case -> (names, checkout, config section)
CASES = {
  'hstu': ('hstu', 'published', config_lib.hstu(**WIDE, dqk=50, dv=50)),
  'hstu_large': (
    'hstu',
    'published',
    config_lib.hstu(**WIDE | {'blocks': 8, 'heads': 2}, dqk=25, dv=25),
  ),
  'sasrec': ('sasrec', 'published', config_lib.sasrec(**WIDE, ffn_dim=50)),
  'sasrec_pytorch': (
    'sasrec_pytorch',
    'classic',
    config_lib.sasrec(**CLASSIC),
  ),
  'sasrec_pytorch_2024': (
    'sasrec_pytorch_2024',
    'classic_2024',
    config_lib.sasrec(**CLASSIC),
  ),
}
COLUMNS = (
  'case', 'arrays', 'numbers', 'max_difference', 'max_output',
  'max_logit_difference', 'same_top_10', 'short_max_difference',
)  # fmt: skip
NOTES = (
  'max_difference: of the outputs at every position, of unit length but for '
  'sasrec_pytorch, over histories of 200, 200, 37, 5 and 1 items; float32 on '
  'both sides. max_logit_difference and same_top_10: of the scores of all '
  'items at the last position.',
  'SASRec.pytorch fills histories up on the left and lets items attend to the '
  'padding: its rows compare the histories of 200 items alone, and '
  'short_max_difference says how far the shorter ones are apart.',
)


def main(argv: list[str] | None = None) -> None:
  args = parse(argv)
  checkouts = {
    name: str(pathlib.Path(place).absolute())
    for name in ('published', 'classic', 'classic_2024')
    if (place := getattr(args, name))
  }
  if not args.peer_python or not checkouts:
    cli.fail('--peer_python and --published (or --classic) are needed')
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    histories = draw_histories()
    cases = {n: c for n, c in CASES.items() if c[1] in checkouts}
    run_peer(args.peer_python, checkouts, cases, histories, scratch)
    rows = [
      compare(name, *case, histories, scratch) for name, case in cases.items()
    ]
    if args.shapes:
      pathlib.Path(args.shapes).write_bytes(
        (scratch / 'shapes.json').read_bytes()
      )
  cli.finish(args, 'weights_parity', rows, COLUMNS, NOTES)


def parse(argv):
  parser = cli.parser('weights_parity', __doc__)
  parser.add_argument('--peer_python', help='a Python with PyTorch')
  parser.add_argument('--published', help='of generative-recommenders')
  parser.add_argument('--classic', help='of SASRec.pytorch, before June 2024')
  parser.add_argument('--classic_2024', help='the same, June 2024 to May 2025')
  parser.add_argument('--shapes', help='writes names and shapes there, JSON')
  return parser.parse_args(argv)


def draw_histories() -> dict[str, np.ndarray]:
  """Items and times of a few users; one time more, of the request."""
  rng = np.random.default_rng(0)
  shape = (len(LENGTHS), max(LENGTHS) + 1)
  gaps = np.exp(rng.uniform(0, np.log(30 * 86_400), shape)).astype(np.int64)
  return {
    'lengths': np.array(LENGTHS),
    'items': rng.integers(1, min(ROWS.values()), shape),
    'times': 1_000_000_000 + np.cumsum(gaps, axis=1),
  }


def run_peer(python, checkouts, cases, histories, scratch) -> None:
  """Lets the published code build, save and run its modules."""
  spec = {'checkouts': checkouts, 'cases': []}
  for name, (_, checkout, section) in cases.items():
    classic = checkout != 'published'
    spec['cases'].append(
      {
        'case': name,
        'classic': classic,
        'checkout': checkout,
        'rows': ROWS['classic' if classic else 'published'],
        **section.to_dict(),
        'model': section.name,
      }
    )
  (scratch / 'spec.json').write_text(json.dumps(spec))
  np.savez(scratch / 'spec.npz', **histories)
  command = [python, str(PEER), str(scratch / 'spec.json'), str(scratch)]
  subprocess.run(command, check=True, stdout=sys.stderr)


def compare(name, names, checkout, section, histories, scratch) -> dict:
  """One published module and what its checkpoint is here."""
  published = convert.read_arrays(scratch / f'{name}.pt')
  own = convert.from_published(published, names)
  back = convert.to_published(own, names)
  assert all(np.array_equal(back[n], x) for n, x in published.items())
  file = scratch / f'{name}.safetensors'
  safetensors.write(file, own)
  rows = len(own[f'tables/{ITEMS}'])
  classic = checkout != 'published'
  ours = outputs_of(section, rows, file, histories, normalised=not classic)
  theirs = theirs_of(scratch / f'{name}.npz', classic)
  # SASRec.pytorch lets shorter histories attend to their padding.
  exact = [n for n in range(len(LENGTHS)) if not classic or LENGTHS[n] == 200]
  short = [n for n in range(len(LENGTHS)) if n not in exact]
  table = np.asarray(own[f'tables/{ITEMS}'])[1:]
  if not classic:
    table = table / np.linalg.norm(table, axis=1, keepdims=True)

  def scores(outputs):
    return np.stack([outputs[n][-1] @ table.T for n in exact])

  def top(outputs):
    return np.sort(np.argsort(-scores(outputs), axis=1)[:, :10], axis=1)

  def apart(users):
    return max(np.abs(ours[n] - theirs[n]).max() for n in users)

  row = {
    'case': name,
    'arrays': len(published),
    'numbers': sum(int(x.size) for x in published.values()),
    'max_difference': float(apart(exact)),
    'max_output': float(max(np.abs(theirs[n]).max() for n in exact)),
    'max_logit_difference': float(np.abs(scores(ours) - scores(theirs)).max()),
    'same_top_10': float((top(ours) == top(theirs)).mean()),
  }
  if short:
    row['short_max_difference'] = float(apart(short))
  return row


def theirs_of(path, classic: bool) -> list[np.ndarray]:
  """[L, D] outputs of each user."""
  outputs = np.load(path)['outputs']
  return [
    row[len(row) - n :] if classic else row[:n]
    for row, n in zip(outputs, LENGTHS, strict=True)
  ]


def outputs_of(section, rows, file, histories, *, normalised) -> list:
  """[L, D] outputs of each user, of a state that began with a file."""
  config = config_lib.retrieval()
  config.loss.l2_normalize = normalised
  fields = section.to_dict()
  task = Retrieval(
    fields.pop('name'),
    fields,
    config.loss.to_dict(),
    corpus=np.arange(1, rows),
    rows=rows,
  )
  tx = optimizer.build(config.optimizer)
  fresh = jax.jit(lambda: state.create(task, tx, 0, ['loss']))()
  weights = import_weights(file, weights_of(fresh), {})

  @jax.jit
  def encode(weights, batch):
    views = view_tables(weights['tables'], task.reads_for('predict', batch))
    return task.encode(weights['params'], views, batch)

  tokens = np.asarray(encode(weights, pack(histories)))
  return np.split(tokens[: sum(LENGTHS)], np.cumsum(LENGTHS)[:-1])


def pack(histories) -> Examples:
  """The histories as a batch."""
  parts = []
  for n, items, times in zip(
    LENGTHS, histories['items'], histories['times'], strict=True
  ):
    since = times - times[0]
    parts.append(np.stack([items[:n], since[:n], since[1 : n + 1]], axis=1))
  rows = np.concatenate(parts)
  columns = Columns(jnp.asarray(rows, jnp.int32), ('item', 'time', 'next_time'))
  lengths = jnp.asarray(LENGTHS, jnp.int32)
  return Examples(
    weights=jnp.ones(len(LENGTHS), jnp.float32),
    row=jnp.arange(len(LENGTHS), dtype=jnp.int32),
    jagged={EVENTS: Jagged(columns, lengths)},
  )


if __name__ == '__main__':
  main()
