"""Damages every file of workdirs and saved runs, and opens them again.

  python -m benchmarks.robustness --parts damage

A retrieval and a ranking run are trained on small logs, their converted data in
the workdir, and saved by the library; a run with requests is trained on a small
stream, its requests in the workdir. Then one file after another gets a bit
flipped, is cut, emptied, deleted, doubled or joined by another file, and the
directory is opened by what the commands call: for predicting, for evaluating,
to continue the training, and by `genrec_jax.load`. All that would then reach a
model is compared, to the bit, with what the whole directory gives: weights,
vocabularies, columns, examples, settings.

  sentence      refused, by a message that names the file or its directory
  same          nothing that is read has changed
  earlier_step  the weights of an earlier step, and a line said so
  healed        the file was written again, and a line said so
  wrong         other values, after some line
  silent        other values without a word
  traceback     an exception that main.py does not expect, or an unnamed file
"""

import collections
import dataclasses
import hashlib
import logging
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

import genrec_jax
from genrec_jax import config as config_lib
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.config import rankers
from genrec_jax.contracts import weights_of
from genrec_jax.data.ranking import rows as rows_lib
from genrec_jax.last_resort import is_for_users
from genrec_jax.runtime.saving import Saver
from genrec_jax.serve.weights import load_weights
from genrec_jax.task_kinds import TASK_KINDS
from genrec_jax.train import experiment as experiment_lib
from genrec_jax.train import loop

DAMAGES = ('bit', 'cut', 'emptied', 'deleted', 'doubled', 'added')
GOOD = ('sentence', 'same', 'earlier_step', 'healed')
BAD = ('wrong', 'silent', 'traceback', 'crash')
COLUMNS = ('case', 'openings', *GOOD, *BAD)
LOG = logging.getLogger('genrec_jax')


@dataclasses.dataclass(frozen=True)
class Target:
  """A directory, and the ways to open it.

  Attributes:
    name: of what it holds.
    directory: whole, never written to.
    openings: name -> function of a copy, that returns what a model would see.
    newest: directories without which an opening gives an earlier step.
  """

  name: str
  directory: pathlib.Path
  openings: dict[str, Callable[[pathlib.Path], object]]
  newest: tuple[tuple[str, ...], ...] = ()

  def files(self) -> list[str]:
    return sorted(
      path.relative_to(self.directory).as_posix()
      for path in self.directory.rglob('*')
      if path.is_file() and path.name != '.lock'
    )


# --- What is damaged


def make_targets(
  root: pathlib.Path,
  kinds: Sequence[str] = ('retrieval', 'ranking', 'requests'),
) -> list[Target]:
  """A workdir and a saved run of each kind of task, below `root`.

  The library saves and loads no runs with requests.
  """
  out = []
  for kind in kinds:
    config = CONFIGS[kind](root)
    workdir, saved = root / kind, root / f'{kind}-saved'
    with jax.numpy_dtype_promotion('standard'):  # for optax
      loop.train_and_evaluate(config, workdir, TASK_KINDS)
    ways = {'predict': _predict, 'evaluate': _evaluate, 'resume': _resume}
    openings = {
      name: lambda copy, open_it=open_it, config=config: open_it(config, copy)
      for name, open_it in ways.items()
    }
    if kind == 'requests':
      out.append(Target(f'{kind} workdir', workdir, openings))
      continue
    genrec_jax.load(workdir).save(saved)
    load = {'load': lambda copy, config=config: _load(config, copy)}
    out.append(Target(f'{kind} workdir', workdir, openings | load))
    out.append(Target(f'saved {kind} run', saved, load))
  return out


def _configure_retrieval(root: pathlib.Path):
  rng = np.random.default_rng(0)
  rows = ['user,item,time,stars']
  rows += [
    f'u{n % 30},i{rng.integers(20)},{1_700_000_000 + 60 * n},{n % 5 + 1}'
    for n in range(300)
  ]
  titles = ['item,title', *(f'i{n},Thing {n}' for n in range(20))]
  _write_once(root / 'log.csv', rows)
  _write_once(root / 'titles.csv', titles)
  config = config_lib.retrieval()
  config.model = config_lib.sasrec(dim=8, ffn_dim=8, blocks=1, max_len=8)
  config.loss.negatives = 4
  config.data.update(
    name='csv', path=str(root / 'log.csv'), titles=str(root / 'titles.csv')
  )
  config.data.columns.rating = 'stars'
  config_lib.apply_override(config, 'data.extras.stars=category')
  config.eval.update(ks=(1, 5), batch_size=8, batch_tokens=64)
  return _shorten(config, 'ndcg@5')


def _configure_ranking(root: pathlib.Path):
  rng = np.random.default_rng(1)
  rows = ['label,user,shop,price']
  rows += [
    f'{n % 2},u{rng.integers(9)},s{rng.integers(5)},{rng.normal():.3f}'
    for n in range(300)
  ]
  _write_once(root / 'clicks.csv', rows)
  config = config_lib.ranking()
  config.model = rankers.dnn()
  config.model.update(dim=4, hidden=(8,))
  config.data.update(name='csv', path=str(root / 'clicks.csv'), block_rows=64)
  config.data.split.update(by='random', valid_fraction=0.2, test_fraction=0.2)
  return _shorten(config, 'auc')


def _configure_requests(root: pathlib.Path):
  del root  # the stream is generated
  config = config_lib.request_smoke(config_lib.request_ranking())
  config.model.update(
    dim=8, blocks=1, dqk=4, dv=4, token_hidden=8, head_hidden=8
  )
  config.data.streaming.users = 8
  return _shorten(config, 'auc')


def _write_once(path: pathlib.Path, rows: list[str]) -> None:
  if not path.exists():  # a command that makes the config again finds it
    path.write_text('\n'.join(rows) + '\n')


def _shorten(config, monitor: str):
  config.train.update(
    batch_size=8, steps=4, eval_every=2, checkpoint_every=2, log_every=2
  )
  config.train.monitor = monitor
  config.report.users = 1
  return config.lock()


CONFIGS = {
  'retrieval': _configure_retrieval,
  'ranking': _configure_ranking,
  'requests': _configure_requests,
}


# --- How it is opened


def _see_data(data) -> list:
  """All that a model could be given of a run's data."""
  dataset = data.dataset
  if hasattr(dataset, 'events'):
    return [dataset.name, dataset.spec, dataset.arrays()]
  if histories := getattr(dataset, 'histories', None):
    seen = [histories.offsets, histories.items, histories.times]
    seen += [histories.ratings, dict(histories.extras), histories.users.ids]
    seen += [histories.vocab.ids, dataset.corpus, dataset.titles]
    return [*seen, {k: v.ids for k, v in histories.extra_vocabs.items()}]
  encoder = dataset.encoder
  blocks = [
    [
      rows_lib.columns_of(rows),
      [(b.values, b.lengths) for b in rows.bags.values()],
    ]
    for split in dataset.splits.values()
    for rows in split
  ]
  return [blocks, encoder.fingerprint(), dict(encoder.reading)]


def _see_weights(workdir, task, checkpoint: str) -> list:
  weights = load_weights(workdir, task, checkpoint)
  return [weights.step, jax.device_get(weights_of(weights))]


def _predict(config, workdir: pathlib.Path):
  """What --mode=predict reads for the users or rows of the training data."""
  workdir_lib.check_trained(workdir, config)
  kept, task = _kept_of(config, workdir)
  seen = [kept, _see_weights(workdir, task, 'best')]
  data = experiment_lib.load_data(config, workdir, TASK_KINDS, LOG.info)
  return [*seen, _see_data(data)]


def _kept_of(config, workdir: pathlib.Path):
  """What a workdir keeps to predict without the data, and the task."""
  if config.task == 'retrieval':
    from genrec_jax.data.items import ItemCatalogue
    from genrec_jax.tasks.retrieval import Retrieval

    items = ItemCatalogue.load(workdir)
    task = Retrieval.from_config(config, items.corpus, items.counts)
    seen = [items.vocab.ids, items.corpus, items.counts, items.titles]
    return [*seen, items.has_times], task
  if config.task == 'request_ranking':
    from genrec_jax.data.requests import request_files
    from genrec_jax.tasks.request_ranking import RequestRanking

    kept = request_files.open_for_predicting(workdir / 'requests')
    task = RequestRanking.from_config(config, kept.spec)
    vocabs = {name: vocab.ids for name, vocab in kept.vocabs.items()}
    seen = [kept.name, kept.spec, kept.fingerprint, kept.users.ids]
    return [*seen, dict(kept.context), vocabs], task
  from genrec_jax.data.ranking.saved_encoder import load_encoder
  from genrec_jax.tasks.ranking import Ranking

  encoder = load_encoder(workdir)
  task = Ranking.from_config(config, encoder.features, encoder.schema.labels)
  return [encoder.fingerprint(), dict(encoder.reading)], task


def _evaluate(config, workdir: pathlib.Path):
  workdir_lib.check_trained(workdir, config)
  data = experiment_lib.load_data(config, workdir, TASK_KINDS, LOG.info)
  if data.fingerprint() != data.read_fingerprint(workdir):
    raise ValueError(f'{workdir} was trained on other data')
  return [_see_data(data), _see_weights(workdir, data.task(config), 'best')]


def _resume(config, workdir: pathlib.Path):
  """What a restart of the training reads before its first step."""
  with workdir_lib.own_workdir(workdir, config):
    built = experiment_lib.build_experiment(
      config, workdir, TASK_KINDS, LOG.info
    )
    seen = [_see_data(built.data)]
    batches = built.runtime.batches(
      iter(built.train_batches(config, lambda: False, LOG.info))
    )
    with Saver(config, workdir, built.runtime, built.task) as saver:
      checkpoints = saver.checkpoints
      newest = checkpoints.latest()
      host = checkpoints.read_manifest(newest)['host'] if newest else {}
      if host and host['data'] != built.fingerprint():
        raise config_lib.ConfigError(f'{workdir} was trained on other data')
      if newest is None:
        raise ValueError(f'{workdir} starts again: no checkpoint is left')
      point = built.runtime.restore(checkpoints, newest, batches)
      seen.append([point.step, jax.device_get(weights_of(point.state))])
    built.data.save_for_predicting(workdir)
    return [*seen, _kept_of(config, workdir)[0]]


def _load(config, path: pathlib.Path):
  """What the library reads, weights and all."""
  run = genrec_jax.load(path)
  kept, task = _kept_of(run.config, path)
  return [run.metrics, run.config.to_dict(), kept,
          _see_weights(path, task, 'best')]  # fmt: skip


def digest(value: object) -> str:
  """A short name of nested values: equal bits, equal names."""
  out = hashlib.sha256()

  def add(value):
    if isinstance(value, dict):
      for key in sorted(value, key=str):
        add([str(key), value[key]])
    elif isinstance(value, list | tuple):
      out.update(f'{len(value)}['.encode())
      for each in value:
        add(each)
    elif isinstance(value, np.ndarray):
      out.update(f'{value.dtype}{value.shape}'.encode())
      out.update(np.ascontiguousarray(value).tobytes())
    else:
      out.update(repr(value).encode())

  add(value)
  return out.hexdigest()


# --- Damage, and what comes of it


def damage_file(path: pathlib.Path, damage: str, rng: random.Random) -> None:
  """Does one of `DAMAGES` to a file."""
  content = path.read_bytes()
  if damage == 'deleted':
    path.unlink()
  elif damage == 'added':
    path.with_name(f'{path.name}.bak').write_bytes(content)
  elif damage == 'bit' and content:
    changed = bytearray(content)
    changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(changed)
  else:
    cut = content[: rng.randrange(max(1, len(content)))]
    path.write_bytes({'cut': cut, 'doubled': content * 2}.get(damage, b''))


class _Lines(logging.Handler):
  """Keeps what is logged at warning level."""

  def __init__(self):
    super().__init__(logging.WARNING)
    self.lines = []

  def emit(self, record):
    self.lines.append(record.getMessage())


def open_damaged(
  target: Target,
  file: str,
  damage: str,
  opening: str,
  wanted: dict,
  change: Callable[[pathlib.Path], None],
) -> dict:
  """The row of one opening: kind, file, damage, outcome and what was told.

  Args:
    target: what is damaged, in a copy.
    file: of the target.
    damage: what `change` does.
    opening: one of the target's.
    wanted: what `expect` gives.
    change: gets the path of the file in the copy.
  """
  row = {'kind': f'{target.name}, {opening}', 'file': file, 'damage': damage}
  handler = _Lines()
  with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder) / target.directory.name
    shutil.copytree(target.directory, copy)
    change(copy / file)
    LOG.addHandler(handler)
    try:
      seen = target.openings[opening](copy)
    except Exception as e:
      # A step of a checkpoint is named by its number.
      named = any(part in str(e) for part in pathlib.Path(file).parts)
      outcome = 'sentence' if named and is_for_users(e) else 'traceback'
      return row | {'outcome': outcome, 'told': repr(e)}
    finally:
      LOG.removeHandler(handler)
  told = '\n'.join(handler.lines)
  return row | {'outcome': _judge(digest(seen), wanted, told), 'told': told}


def _judge(digest_now: str, wanted: dict, told: str) -> str:
  if digest_now == wanted['digest']:
    return 'healed' if 'again' in told else 'same'
  if digest_now in wanted['earlier'] and told:
    return 'earlier_step'
  return 'wrong' if told else 'silent'


def expect(target: Target, opening: str) -> dict:
  """Digests of what an opening gives: all whole, and of each earlier step."""

  def give(without: Sequence[pathlib.Path]) -> str:
    with tempfile.TemporaryDirectory() as folder:
      copy = pathlib.Path(folder) / target.directory.name
      shutil.copytree(target.directory, copy)
      for path in without:
        shutil.rmtree(copy / path)
      return digest(target.openings[opening](copy))

  earlier = []
  for folder in ('checkpoints', 'best'):
    steps = (target.directory / folder).glob('*')
    numbers = sorted(int(p.name) for p in steps if p.name.isdecimal())
    for n in range(1, len(numbers)):
      gone = [pathlib.Path(folder, str(step)) for step in numbers[-n:]]
      earlier.append(give(gone))
  if (target.directory / 'best').exists() and opening != 'resume':
    if (target.directory / 'checkpoints').exists():
      earlier.append(give([pathlib.Path('best')]))
  earlier += [give([pathlib.Path(p) for p in paths]) for paths in target.newest]
  return {'digest': give([]), 'earlier': earlier}


def walk(
  targets: Sequence[Target], count: int, seed: int = 0
) -> Iterator[dict]:
  """Rows of `count` openings, over all files and damages in turn."""
  rng = random.Random(seed)
  wanted = {
    (target.name, opening): expect(target, opening)
    for target in targets
    for opening in target.openings
  }
  done = 0
  while True:
    cases = [
      (target, file, damage, opening)
      for target in targets
      for file in target.files()
      for damage in DAMAGES
      for opening in target.openings
    ]
    rng.shuffle(cases)
    for target, file, damage, opening in cases:
      if done == count:
        return
      done += 1
      yield open_damaged(
        target,
        file,
        damage,
        opening,
        wanted[target.name, opening],
        lambda path, damage=damage: damage_file(path, damage, rng),
      )


def summarize(rows: Sequence[dict]) -> list[dict]:
  """Outcomes counted by kind, and of all."""
  counts = collections.defaultdict(collections.Counter)
  for row in rows:
    for case in (row['kind'], 'all'):
      counts[case].update([row['outcome']])
  return [
    {'case': case, 'openings': c.total()}
    | {outcome: c[outcome] for outcome in COLUMNS[2:]}
    for case, c in counts.items()
  ]
