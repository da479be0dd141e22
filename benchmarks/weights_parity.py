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
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from benchmarks import cli
from genrec_jax import config as config_lib
from genrec_jax.contracts import weights_of
from genrec_jax.embedding.lookup import view_tables
from genrec_jax.features import EVENTS, Columns, Examples, Jagged
from genrec_jax.runtime import optimizer, state
from genrec_jax.tasks.retrieval import ITEMS, Retrieval
from genrec_jax.weights import convert, safetensors
from genrec_jax.weights.start import import_weights

PEER = pathlib.Path(__file__).parent / 'peer_weights.py'
LENGTHS = (200, 200, 37, 5, 1)
ROWS = {'published': 3953, 'classic': 3417, 'classic_2024': 3417}
SIZES = dict(dim=50, blocks=2, heads=1, max_len=200)
WIDTHS = dict(dqk=50, dv=50)
SMOKE = dict(dim=8, blocks=1, heads=1, max_len=12)
SMOKE_LENGTHS = (12, 12, 3)


class Case(NamedTuple):
  """A published model.

  Attributes:
    names: key of `published.MODELS`.
    checkout: the option that says where it is.
    section: the same model here.
  """

  names: str
  checkout: str
  section: ConfigDict

  @property
  def classic(self) -> bool:
    return self.checkout != 'published'


def make_cases(smoke: bool) -> dict[str, Case]:
  """The published models at their sizes for ML-1M, or tiny."""
  sizes = SMOKE if smoke else SIZES
  widths = dict(dqk=8, dv=8) if smoke else WIDTHS
  ffn = dict(ffn_dim=sizes['dim'])
  large = sizes | (dict(heads=2) if smoke else dict(blocks=8, heads=2))
  half = {key: width // 2 for key, width in widths.items()}
  classic = config_lib.sasrec(
    **sizes,
    **ffn,
    extra_positions=0,
    norm_affine=True,
    final_norm=True,
    positions_from='newest',
  )
  return {
    'hstu': Case('hstu', 'published', config_lib.hstu(**sizes, **widths)),
    'hstu_large': Case('hstu', 'published', config_lib.hstu(**large, **half)),
    'sasrec': Case('sasrec', 'published', config_lib.sasrec(**sizes, **ffn)),
    'sasrec_pytorch': Case('sasrec_pytorch', 'classic', classic),
    'sasrec_pytorch_2024': Case('sasrec_pytorch_2024', 'classic_2024', classic),
  }


COLUMNS = (
  'case', 'arrays', 'numbers', 'max_difference', 'max_output',
  'max_logit_difference', 'same_top_10', 'short_max_difference', 'peer',
)  # fmt: skip
NOTES = (
  'max_difference: of the outputs at every position, of length one but for '
  'sasrec_pytorch, over histories of 200, 200, 37, 5 and 1 items; float32 on '
  'both sides, weights away from their initial values. max_logit_difference '
  'and same_top_10: of the scores of all items at the last position.',
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
  lengths = SMOKE_LENGTHS if args.smoke else LENGTHS
  cases = {
    name: case
    for name, case in make_cases(args.smoke).items()
    if case.checkout in checkouts
  }
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    histories = draw_histories(lengths)
    about = run_peer(args.peer_python, checkouts, cases, histories, scratch)
    rows = []
    for name, case in cases.items():
      row = compare(scratch / name, case, histories)
      commit = {'commit': find_commit(checkouts[case.checkout])}
      peer = {'peer': ' '.join(about['versions'])}
      rows.append({'case': name, **row, **peer, **commit})
  if args.shapes:
    pathlib.Path(args.shapes).write_text(json.dumps(about['shapes'], indent=1))
  cli.finish(args, 'weights_parity', rows, COLUMNS, NOTES)


def parse(argv):
  parser = cli.parser('weights_parity', __doc__)
  parser.add_argument('--peer_python', help='a Python with PyTorch')
  parser.add_argument('--published', help='of generative-recommenders')
  parser.add_argument('--classic', help='of SASRec.pytorch, before June 2024')
  parser.add_argument('--classic_2024', help='the same, June 2024 to May 2025')
  parser.add_argument('--shapes', help='writes names and shapes there, JSON')
  return parser.parse_args(argv)


def draw_histories(lengths) -> dict[str, np.ndarray]:
  """Items and times of a few users; one time more, of the request."""
  rng = np.random.default_rng(0)
  shape = (len(lengths), max(lengths) + 1)
  gaps = np.exp(rng.uniform(0, np.log(30 * 86_400), shape)).astype(np.int64)
  return {
    'lengths': np.array(lengths),
    'items': rng.integers(1, min(ROWS.values()), shape),
    'times': 1_000_000_000 + np.cumsum(gaps, axis=1),
  }


def run_peer(python, checkouts, cases, histories, scratch) -> dict:
  """Lets the published code build, save and run its modules.

  Returns:
    'shapes' of the state dicts by case, and the 'versions' of its packages.
  """
  spec = {'checkouts': checkouts, 'cases': []}
  for name, case in cases.items():
    spec['cases'].append(
      {
        **case.section.to_dict(),
        'case': name,
        'classic': case.classic,
        'checkout': case.checkout,
        'model': case.section.name,
        'rows': ROWS[case.checkout],
      }
    )
  (scratch / 'spec.json').write_text(json.dumps(spec))
  np.savez(scratch / 'spec.npz', **histories)
  command = [python, str(PEER), str(scratch / 'spec.json'), str(scratch)]
  subprocess.run(command, check=True, stdout=sys.stderr)
  return json.loads((scratch / 'about.json').read_text())


def find_commit(checkout: str) -> str:
  """What a checkout is of; '' where git does not know."""
  command = ['git', '-C', checkout, 'rev-parse', '--short=12', 'HEAD']
  try:
    quiet = subprocess.DEVNULL
    return subprocess.check_output(command, text=True, stderr=quiet).strip()
  except (OSError, subprocess.CalledProcessError):
    return ''


def compare(path: pathlib.Path, case: Case, histories) -> dict:
  """What a published module said and what its checkpoint says here."""
  published = convert.read_arrays(path.with_suffix('.pt'))
  own = convert.from_published(published, case.names)
  back = convert.to_published(own, case.names)
  assert all(np.array_equal(back[n], x) for n, x in published.items())
  file = path.with_suffix('.safetensors')
  safetensors.write_file(file, own)
  table = np.asarray(own[f'tables/{ITEMS}'])
  ours = compute_outputs(case, len(table), file, histories)
  theirs = load_outputs(path.with_suffix('.npz'), case, histories['lengths'])
  lengths = histories['lengths']
  # SASRec.pytorch lets shorter histories attend to their padding.
  exact = [
    n
    for n, length in enumerate(lengths)
    if not case.classic or length == case.section.max_len
  ]
  short = [n for n in range(len(lengths)) if n not in exact]
  table = table[1:]
  if not case.classic:
    table = table / np.linalg.norm(table, axis=1, keepdims=True)

  def scores(outputs):
    return np.stack([outputs[n][-1] @ table.T for n in exact])

  def top(outputs):
    return np.sort(np.argsort(-scores(outputs), axis=1)[:, :10], axis=1)

  def apart(users):
    return float(max(np.abs(ours[n] - theirs[n]).max() for n in users))

  row = {
    'arrays': len(published),
    'numbers': sum(int(x.size) for x in published.values()),
    'max_difference': apart(exact),
    'max_output': float(max(np.abs(theirs[n]).max() for n in exact)),
    'max_logit_difference': float(np.abs(scores(ours) - scores(theirs)).max()),
    'same_top_10': float((top(ours) == top(theirs)).mean()),
  }
  if short:
    row['short_max_difference'] = apart(short)
  return row


def load_outputs(path, case: Case, lengths) -> list[np.ndarray]:
  """[L, D] outputs of each user."""
  outputs = np.load(path)['outputs']
  return [
    row[len(row) - n :] if case.classic else row[:n]
    for row, n in zip(outputs, lengths, strict=True)
  ]


def compute_outputs(case: Case, rows: int, file, histories) -> list[np.ndarray]:
  """[L, D] outputs of each user, of a state that began with a file."""
  config = config_lib.retrieval()
  config.loss.l2_normalize = not case.classic
  fields = case.section.to_dict()
  task = Retrieval(
    fields.pop('name'),
    fields,
    config.loss.to_dict(),
    corpus=np.arange(1, rows),
    rows=rows,
  )
  tx = optimizer.build_optimizer(config.optimizer)
  fresh = jax.jit(lambda: state.create_state(task, tx, 0, ['loss']))()
  weights = import_weights(file, weights_of(fresh), {})

  @jax.jit
  def encode(weights, batch):
    views = view_tables(weights['tables'], task.reads_for('predict', batch))
    return task.encode(weights['params'], views, batch)

  tokens = np.asarray(encode(weights, pack(histories)))
  return np.split(tokens, np.cumsum(histories['lengths'])[:-1])


def pack(histories) -> Examples:
  """The histories as a batch."""
  parts = []
  columns = (histories[key] for key in ('lengths', 'items', 'times'))
  for n, items, times in zip(*columns, strict=True):
    since = times - times[0]
    parts.append(np.stack([items[:n], since[:n], since[1 : n + 1]], axis=1))
  values = jnp.asarray(np.concatenate(parts), jnp.int32)
  lengths = jnp.asarray(histories['lengths'], jnp.int32)
  events = Jagged(Columns(values, ('item', 'time', 'next_time')), lengths)
  return Examples(
    weights=jnp.ones(len(lengths), jnp.float32),
    row=jnp.arange(len(lengths), dtype=jnp.int32),
    jagged={EVENTS: events},
  )


if __name__ == '__main__':
  main()
