"""The models of benchmarks/scaling_law.py, their data and their training."""

import dataclasses
import functools
import json
import os
import pathlib

import jax
import numpy as np
import optax

from benchmarks import cli, dense_ranking, flops, interaction_order
from benchmarks.result import CoreTimer
from genrec_jax import config as config_lib
from genrec_jax.data.ranking import clicks
from genrec_jax.features import Examples, FeatureSpec
from genrec_jax.models import RANKERS
from genrec_jax.tasks import ranking_metrics
from genrec_jax.tasks.ranking import Ranking

LOG = clicks.ClickLog(
  rows=400_000,
  fields=8,
  values=20,
  numbers=0,
  orders=(1, 2, 3, 4),
  terms=12,
  noise=0.0,
  traits=2,
  signal=3.0,
  zipf=0.0,
)
VALIDATED, TESTED = 25_000, 50_000  # rows behind those of training
DIM = 16  # width of all vectors
INIT_STD = 0.01  # of the tables
BATCH, CLIP, WARMUP = 256, 1.0, 0.05
TOLD = 1000  # rows of a batch that is predicted
NAMES = {'wukong': 'Wukong', 'dlrm': 'DLRM', 'dcn': 'DCN-V2', 'dnn': 'MLP'}

# l, n_F = n_L, k, hidden width: first more layers, then all the rest together.
WUKONG = (
  (1, 4, 4, 16),
  (2, 4, 4, 16),
  (2, 6, 6, 48),
  (2, 8, 8, 96),
  (2, 8, 16, 256),
  (2, 16, 16, 448),
)
# The other families have the same ladder of hidden layers: (width, how many).
DEEP = ((16, 1), (64, 2), (128, 3), (256, 3), (512, 3), (640, 4))


def model_of(family: str, size: int):
  """The config of a place on a family's ladder."""
  if family == 'wukong':
    layers, n, k, width = WUKONG[size]
    return config_lib.wukong(
      dim=DIM,
      layers=layers,
      fmb=n,
      lcb=n,
      rank=k,
      compress=k,
      attention_hidden=(width,),
      fmb_hidden=(width,),
      top=(width,),
    )
  width, depth = DEEP[size]
  deep, own = (width,) * depth, dict(dim=DIM, batch_norm=False)
  if family == 'dlrm':
    return config_lib.dlrm(top=deep, **own)
  if family == 'dcn':
    return config_lib.dcn(cross=2, rank=16, hidden=deep, **own)
  return config_lib.dnn(hidden=deep, **own)


def size_name(family: str, size: int) -> str:
  if family == 'wukong':
    return 'l{} n{} k{} h{}'.format(*WUKONG[size])
  width, depth = DEEP[size]
  return f'{depth} x {width}'


class Bench:
  """The log, and the runs on it.

  Args:
    log: what is planted; `log.rows` are those of training.
    tested: rows of the test.
    store: directory of finished runs, or None.
  """

  def __init__(
    self, log: clicks.ClickLog, tested: int, store: pathlib.Path | None
  ):
    self.log, self.store = log, store
    self.parts, first = {}, log.rows
    for part, rows in (('valid', min(VALIDATED, tested)), ('test', tested)):
      self.parts[part] = slice(first, first + rows)
      first += rows
    columns = zip(*clicks.generate_arrays(log, 0, first), strict=True)
    values, _, labels, chance = map(np.concatenate, columns)
    self.ids = values.astype(np.int32) + 1
    self.labels, self.chance = labels.astype(np.float32), chance
    self.features = tuple(
      FeatureSpec(f'c{i}', rows=log.values + 2) for i in range(log.fields)
    )
    self._programs, self._done = {}, {}

  def macs(self, family: str, size: int) -> flops.Macs:
    """What an example costs."""
    model = model_of(family, size).to_dict()
    kind = RANKERS[model.pop('name')]
    return flops.count_macs(kind, kind.Config(**model), self.features)

  def bayes(self, part: str) -> float:
    """Log loss of the truth, over what the labels may be."""
    return float(_entropy(self.chance[self.parts[part]]).mean())

  def run(
    self, family: str, size: int, rate: float, seed: int, part: str = 'test'
  ) -> dict:
    """Trains and measures; or tells what was measured before."""
    case = f'{family}/{size}/rate{rate:g}/seed{seed}'
    if case not in self._done:
      self._done[case] = self._run(case, family, size, rate, seed, part)
    return dict(self._done[case])

  def _run(self, case, family, size, rate, seed, part) -> dict:
    settings = self._settings(family, size)
    path = self.store and self.store / f'{case.replace("/", "_")}.json'
    if path and path.exists():
      found = json.loads(path.read_text())
      if found.pop('settings') != settings:
        cli.fail(f'{path} is of other settings: name another --runs')
      return found
    train, predict = self._program(family, size)
    macs = self.macs(family, size)
    with CoreTimer() as timer:
      weights, steps = train(rate, seed)
    logits = predict(weights, self.parts[part])
    found = {
      'case': case,
      'family': family,
      'size': size,
      'rate': rate,
      'seed': seed,
      'part': part,
      'mflop': macs.mflop,
      'mflop_total': 6e-6 * macs.total,
      'params': sum(x.size for x in jax.tree.leaves(weights['params'])),
      'steps': steps,
      'core_s': timer.core_s,
      **self.measure(logits, part),
    }
    print(
      f'{case}: {found["mflop_total"]:.3f} MFLOP, '
      f'excess {found["excess"]:.4f}, {found["core_s"]:.1f} core-s',
      flush=True,
    )
    if path:
      path.parent.mkdir(parents=True, exist_ok=True)
      temporary = path.with_suffix('.tmp')
      temporary.write_text(json.dumps(found | {'settings': settings}))
      os.replace(temporary, path)
    return found

  def measure(self, logits: np.ndarray, part: str) -> dict[str, float]:
    """{'logloss', 'excess', 'auc'} of predictions `[R]` of a part."""
    at = self.parts[part]
    found = ranking_metrics.measure_labels(
      logits[:, None], self.labels[at, None], names=('y',)
    )
    p, z = self.chance[at], logits.astype(np.float64)
    cross = p * np.logaddexp(0, -z) + (1 - p) * np.logaddexp(0, z)
    return {
      'logloss': found['logloss'],
      'excess': float((cross - _entropy(p)).mean()),
      'auc': found['auc'],
    }

  def _settings(self, family: str, size: int) -> dict:
    """What a stored run depends on, as JSON tells it."""
    settings = {
      'log': dataclasses.asdict(self.log),
      'tested': self.parts['test'].stop - self.parts['test'].start,
      'model': model_of(family, size).to_dict(),
      'training': [INIT_STD, BATCH, CLIP, WARMUP],
    }
    return json.loads(json.dumps(settings))

  def _program(self, family: str, size: int):
    """(train, predict), compiled once for all rates and seeds."""
    key = family, size
    if key not in self._programs:
      model = model_of(family, size).to_dict()
      name = model.pop('name')
      task = Ranking(
        name,
        model,
        {},
        features=self.features,
        labels=('y',),
        init_std=INIT_STD,
      )
      self._programs[key] = _programs(task, self)
    return self._programs[key]

  def batch(self, at) -> Examples:
    """Rows as a batch."""
    return interaction_order.make_examples(self.ids[at], self.labels[at])


def _programs(task: Ranking, bench: Bench):
  """(train(rate, seed) -> (weights, steps), predict(weights, rows))."""
  tx = optax.chain(optax.clip_by_global_norm(CLIP), optax.scale_by_adam())

  @functools.partial(jax.jit, donate_argnums=(0, 1))
  def step(weights, state, batch, rate):
    gradient = dense_ranking.gradient(task, weights, batch)
    updates, state = tx.update(gradient, state, weights)
    return jax.tree.map(lambda w, u: w - rate * u, weights, updates), state

  @jax.jit
  def logits(weights, batch):
    return dense_ranking.logits(task, weights, batch)

  def train(rate, seed):
    keys = jax.random.split(jax.random.key(seed))
    weights = dense_ranking.fresh(task, *keys)
    state = tx.init(weights)
    order = np.random.default_rng([seed, 1]).permutation(bench.log.rows)
    steps = bench.log.rows // BATCH
    for i in range(steps):
      # Up in a line, down to zero by a cosine.
      share = min(1.0, (i + 1) / (WARMUP * steps))
      share *= 0.5 + 0.5 * np.cos(np.pi * i / steps)
      batch = bench.batch(order[i * BATCH : (i + 1) * BATCH])
      weights, state = step(weights, state, batch, np.float32(rate * share))
    return jax.block_until_ready(weights), steps

  def predict(weights, rows):
    found = []
    for first in range(rows.start, rows.stop, TOLD):
      at = slice(first, min(first + TOLD, rows.stop))
      found.append(np.asarray(logits(weights, bench.batch(at))))
    return np.concatenate(found)

  return train, predict


def _entropy(p: np.ndarray) -> np.ndarray:
  p = np.clip(p, 1e-12, 1 - 1e-12)
  return -p * np.log(p) - (1 - p) * np.log1p(-p)
