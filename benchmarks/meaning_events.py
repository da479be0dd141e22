"""Cases of `benchmarks.meaning`: times of events, and what is trained on."""

import datetime
import functools
import math
import pathlib
from collections.abc import Sequence
from unittest import mock

import numpy as np

import genrec_jax
from benchmarks import meaning_forms as forms
from benchmarks.meaning_cases import Case, refusal
from genrec_jax import config as config_lib
from genrec_jax.data import datasets, pipeline
from genrec_jax.tasks.retrieval import Retrieval
from genrec_jax.train.retrieval_data import RetrievalData

START = datetime.datetime(2026, 11, 2, 12, 30)
SMALL = {
  'model.blocks': 1,
  'model.max_len': 8,
  'model.dim': 8,
  'train.batch_size': 4,
  'eval.ks': (1,),
  'train.monitor': 'hr@1',
  'eval.filter_seen': 'none',
}


def list_cases() -> list[Case]:
  """All cases of this file."""
  return [*_times(), *_trained(), *_misses()]


def read_events(form, **settings) -> datasets.RetrievalDataset:
  """The events as a run of one step has prepared them."""
  with forms.hear():
    run = genrec_jax.fit(
      form, 'sasrec', settings=SMALL | settings, steps=1, progress=False
    )
  cache = run.config.data.cache or run.workdir / 'data'
  return datasets.load(run.config.data, cache, log=lambda line: None)


def _times() -> list[Case]:
  def case(name, times: Sequence, seconds: Sequence[int], unit='s', **types):
    """Five events of each of two users, newest first, with these times."""
    items = [f'i{n}' for n in range(len(times))]
    table = {
      'user': ['u', 'v'] * len(times),
      'item': [x for item in items for x in (item, item)],
      'time': [t for time in times for t in (time, time)],
    }

    def measure(engine, directory):
      form = forms.make_form(engine, table, directory / 'log', types)
      data = read_events(form, **{'data.time_unit': unit})
      h = data.histories
      own = slice(int(h.offsets[0]), int(h.offsets[1]))
      return {
        'order': h.vocab.ids[h.items[own] - 1].tolist(),
        'seconds': np.asarray(h.times[own]).tolist(),
      }

    def sort():
      import pandas as pd

      frame = pd.DataFrame({'item': items, 'time': times})
      if not isinstance(times[0], int | float):
        frame['time'] = pd.to_datetime(frame['time'], format='ISO8601')
      order = frame.sort_values('time', kind='stable').index
      return {
        'order': [items[i] for i in order],
        'seconds': [seconds[i] for i in order],
      }

    return Case(name, 'times', 'pandas', sort, measure)

  first = 1_700_000_000
  steps = [4, 3, 2, 1, 0]
  ends = [first] * 5
  moments = [START + datetime.timedelta(milliseconds=100 * i) for i in steps]
  zone = datetime.timezone(datetime.timedelta(hours=2))
  start = int(START.replace(tzinfo=datetime.UTC).timestamp())
  days = [START.date() + datetime.timedelta(days=i) for i in steps]
  midnight = start - start % 86_400
  return [
    case(
      'seconds, newest first',
      [first + i for i in steps],
      [first + i for i in steps],
    ),
    case(
      'milliseconds of one second, newest first',
      [first * 1000 + 100 * i for i in steps],
      ends,
      'ms',
    ),
    case(
      'microseconds of one second, newest first',
      [first * 10**6 + 10 * i for i in steps],
      ends,
      'us',
    ),
    case(
      'nanoseconds of one second, newest first',
      [first * 10**9 + i for i in steps],
      ends,
      'ns',
    ),
    case(
      'fractions of a second, newest first',
      [first + i / 8 for i in steps],
      ends,
    ),
    case(
      'ISO text with fractions, newest first',
      [moment.isoformat() for moment in moments],
      [start] * 5,
    ),
    case('timestamps, newest first', moments, [start] * 5),
    case(
      'timestamps of a zone, newest first',
      [moment.replace(tzinfo=zone) for moment in moments],
      [start - 7200] * 5,
    ),
    case('dates, newest first', days, [midnight + 86_400 * i for i in steps]),
    case('equal times stay in the order of the file', ends, ends),
    case(
      'a fraction and a whole second',
      [first + 1, first + 0.5, first + 1.5, first, first + 2],
      [first + 1, first, first + 1, first, first + 2],
    ),
    Case(
      'a missing time is refused',
      'times',
      'pandas',
      refusal('time'),
      lambda engine, directory: read_events(
        forms.make_form(
          engine,
          {
            'user': ['u'] * 5,
            'item': list('abcde'),
            'time': [first, first, None, first, first],
          },
          directory / 'log',
        )
      ),
    ),
  ]


def _trained() -> list[Case]:
  rng = np.random.default_rng(5)
  users = [n for n in range(40) for _ in range(n % 19 + 4)]
  table = {
    'user': users,
    'item': rng.integers(0, 30, len(users)).tolist(),
    'time': list(range(1, len(users) + 1)),
  }

  def drain(config, data) -> np.ndarray:
    """The next items of one epoch, counted."""
    batches = pipeline.train_batches(
      data.dataset.histories,
      data.splits['train'],
      batch_size=4,
      max_len=config.model.max_len,
      seed=0,
    )
    counts = np.zeros(data.dataset.histories.vocab.rows, int)
    steps = data.steps_per_epoch(4)
    for _, batch in zip(range(steps), batches, strict=False):
      counts += np.bincount(
        np.asarray(batch.jagged['events']['next_item']).ravel(),
        minlength=len(counts),
      )
    counts[0] = 0
    return counts

  @functools.cache
  def load(directory: pathlib.Path, windows: str, max_len: int):
    path = forms.make_form('csv', table, directory / 'log')
    config = config_lib.retrieval()
    config.model = config_lib.sasrec(max_len=max_len)
    config.data.update(name='csv', path=path)
    config.data.columns.update(user='user', item='item', time='time')
    config.split.name, config.split.windows = 'leave_last_out', windows
    config.loss.update(sampler='in_batch', logq=True)
    return config, RetrievalData.load(config, directory, lambda line: None)

  def case(windows, max_len):
    def measure(engine, directory):
      config, data = load(directory, windows, max_len)
      with mock.patch.object(Retrieval, 'from_config') as build:
        data.task(config)
      counts = np.array(build.call_args.args[2], int)
      counts[0] = 0
      return int(np.abs(counts - drain(config, data)).sum())

    return Case(
      f'counts of loss.logq, windows={windows}, max_len={max_len}',
      'what is trained',
      'a drained epoch',
      0,
      measure,
      ('csv',),
    )

  return [case('latest', 50), case('latest', 5), case('all', 5)]


def _misses() -> list[Case]:
  """Every held-out item is one that the user has had, which is filtered."""

  def measure(engine, directory):
    table = {
      'user': [n for n in range(30) for _ in range(6)],
      'item': [(n + i % 3) % 60 for n in range(30) for i in range(6)],
      'time': list(range(180)),
    }
    form = forms.make_form(engine, table, directory / 'log')
    settings = SMALL | {'eval.ks': (1, 10, 100), 'eval.filter_seen': 'history'}
    with forms.hear():
      run = genrec_jax.fit(
        form, 'sasrec', settings=settings, steps=1, progress=False
      )
    hits = {**run.metrics['test'], **run.baselines['popularity']['test']}
    return [v for name, v in hits.items() if not name.startswith('mrr')]

  def judge(engine, directory):
    values = measure(engine, directory)
    return 0.0 if values else math.nan, max(values)

  return [
    Case(
      'targets that are filtered are misses for every k',
      'retrieval metrics',
      'by hand',
      [0.0, 0.0],
      judge,
    )
  ]
