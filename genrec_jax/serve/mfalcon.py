"""A user of a generative ranker, scored by M-FALCON, as a command shows it.

    python -m genrec_jax.serve.mfalcon --workdir=DIR --demo [--user=NAME]

Prints a user's history, its candidates with their scores, and how they move
when an event is added. `cached_scorer.CachedScorer` does the work.
"""

import argparse
import dataclasses
import os
import pathlib
import time

import numpy as np
from ml_collections import ConfigDict

from genrec_jax import config as config_lib
from genrec_jax import last_resort
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.data.quoting import escape
from genrec_jax.data.requests import prepared
from genrec_jax.data.requests.requests import RequestDataset, Requests
from genrec_jax.formatting import format_bytes
from genrec_jax.serve.cached_scorer import CachedScorer
from genrec_jax.serve.request_scorer import RequestScorer
from genrec_jax.serve.user_events import Events, read_events

_SHOWN_EVENTS, _SHOWN_CANDIDATES, _LATER = 8, 10, 60


def run_demo(
  workdir: str | os.PathLike, user: str = '', checkpoint: str = 'best'
) -> list[str]:
  """Lines about one user: its history, its candidates, and one event more.

  Args:
    workdir: of a trained run of model 'stu', whose data are there.
    user: as the data name it; '' is the one of the test split with the longest
      history.
    checkpoint: 'best' or 'latest'.

  Raises:
    ValueError: there is no such user, or no request of it.
  """
  workdir = pathlib.Path(workdir)
  if not (workdir / 'config.json').exists():
    raise FileNotFoundError(
      f'{workdir} is not the workdir of a run (no config.json); train first'
    )
  config = ConfigDict(config_lib.read_config(workdir / 'config.json'))
  scorer = RequestScorer.load(workdir, config, checkpoint)
  cached = CachedScorer(scorer)
  cache = config.data.cache or workdir / 'data'
  dataset = prepared.load(config.data, cache, lambda *_: None)
  requests = dataset.splits.get('test') or dataset.splits['valid']
  number = _choose_request(dataset, requests, user)
  one = requests.take(number)
  row = int(requests.user[number])
  begin, end = int(dataset.events.offsets[row]), int(requests.end[number])
  events = read_events(dataset, begin, end)
  lines = [
    f'user {dataset.user_ids[row]}: {len(events)} events, the latest last',
    '',
    *_show_events(scorer, events),
    '',
  ]
  began = time.perf_counter()
  before = next(cached.score_requests(dataset, one))
  first = time.perf_counter() - began
  began = time.perf_counter()
  next(cached.score_requests(dataset, one))
  again = time.perf_counter() - began
  order = np.argsort(-before[:, 0], kind='stable')
  best = int(order[0])
  longer, later = _add_event(dataset, one, begin, end, best)
  after = next(cached.score_requests(longer, later))
  added = f'{scorer.spec.items[0].name} {_name_items(scorer, one)[best]}'
  lines += [
    f'candidates by {scorer.labels[0]}, and after an event more ({added}):',
    '',
    *_show_candidates(scorer, one, before, after, order),
    '',
  ]
  work, counts = cached.work, cached.cache.counts
  kept = cached.cache.row_bytes * cached._programs.count_tokens(len(events))
  lines += [
    f'the first answer took {1e3 * first:.0f} ms, programs included, the same '
    f'again {1e3 * again:.1f} ms',
    f'histories computed: {work.kept}, events added: {work.extended_events}, '
    f'found in the cache: {counts.hits}; the history of this user takes '
    f'{format_bytes(kept)}',
  ]
  if cached.rebuilds_because:
    lines.append(
      'a new event makes the history anew, because of '
      f'{cached.rebuilds_because}'
    )
  return lines


def _choose_request(dataset: RequestDataset, requests: Requests, user: str):
  """The number of a request with some candidates and a long history."""
  asked = np.flatnonzero(np.diff(requests.offsets) > 0)
  if not len(asked):
    raise ValueError('the data have no request with candidates to show')
  if user:
    names = dataset.user_ids[requests.user[asked]]
    asked = asked[np.array([str(name) == user for name in names], bool)]
    if not len(asked):
      raise ValueError(f'the test split has no request of user {user!r:.100}')
    return int(asked[-1])
  # A ranking of one says nothing; beyond what is shown, the history counts.
  many = np.minimum(np.diff(requests.offsets)[asked], _SHOWN_CANDIDATES)
  length = requests.end[asked] - dataset.events.offsets[requests.user[asked]]
  return int(asked[np.lexsort((length, many))[-1]])


def _add_event(
  dataset: RequestDataset, one: Requests, begin: int, end: int, best: int
) -> tuple[RequestDataset, Requests]:
  """The data as if the user had liked its best candidate a minute later."""
  spec = dataset.spec
  bit = spec.actions[-1][1] if spec.actions else 0
  known = read_events(dataset, begin, end)
  timed = known.time is not None
  new = Events(
    {f.name: one.items[f.name][best : best + 1] for f in spec.items},
    np.array([bit], np.int32),
    np.array([int(one.time[0])]) if timed else None,
    np.zeros(1, np.float32) if spec.watch_time else None,
  )
  events = known.followed_by(new)
  store = dataclasses.replace(
    dataset.events,
    offsets=_only(dataset.events.offsets, int(one.user[0]), len(events)),
    items=events.items,
    action=events.action,
    time=events.time,
    watch_time=events.watch_time,
  )
  longer = dataclasses.replace(dataset, events=store)
  moment = one.time + _LATER if timed else None
  later = dataclasses.replace(one, end=np.array([len(events)]), time=moment)
  return longer, later


def _only(offsets: np.ndarray, user: int, count: int) -> np.ndarray:
  """Offsets of events that are all of one user."""
  out = np.zeros_like(offsets)
  out[user + 1 :] = count
  return out


def _show_events(scorer: RequestScorer, events: Events) -> list[str]:
  names = [f.name for f in scorer.spec.items]
  some = slice(max(len(events) - _SHOWN_EVENTS, 0), None)
  shown = events.take(some)
  texts = {n: scorer.values[n].decode(shown.items[n]) for n in names}
  rows = []
  for i in range(len(shown)):
    row = [str(texts[n][i]) for n in names]
    bits = [n for n, bit in scorer.spec.actions if shown.action[i] & bit]
    row.append(', '.join(bits) or '-')
    if shown.time is not None:
      row.append(str(np.datetime64(int(shown.time[i]), 's')))
    rows.append(row)
  head = [f'<{n}' for n in names] + ['<what was done']
  head += ['<when'] if shown.time is not None else []
  return list(format_columns(tuple(head), rows))


def _name_items(scorer: RequestScorer, one: Requests) -> list[str]:
  name = scorer.spec.items[0].name
  return [str(x) for x in scorer.values[name].decode(one.items[name])]


def _show_candidates(scorer, one, before, after, order) -> list[str]:
  names = _name_items(scorer, one)
  place = np.empty(len(order), int)
  place[np.argsort(-after[:, 0], kind='stable')] = np.arange(len(order)) + 1
  rows = []
  for rank, i in enumerate(order[:_SHOWN_CANDIDATES].tolist(), 1):
    moved = after[i, 0] - before[i, 0]
    rows.append([
      str(rank), names[i], f'{before[i, 0]:.4f}', f'{after[i, 0]:.4f}',
      f'{moved:+.4f}', str(place[i]),
    ])  # fmt: skip
  item = scorer.spec.items[0].name
  head = ('>rank', f'<{item}', '>score', '>then', '>moved', '>rank then')
  lines = list(format_columns(head, rows))
  if len(order) > _SHOWN_CANDIDATES:
    lines.append(f'and {len(order) - _SHOWN_CANDIDATES:,} more')
  return lines


def main(argv: list[str] | None = None) -> int:
  args = _make_parser().parse_args(argv)
  # No device that a training may be using is asked for.
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  lines = run_demo(args.workdir, args.user, args.checkpoint)
  last_resort.print_result(escape('\n'.join(lines), keep='\n'))
  return 0


def _make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.serve.mfalcon',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--workdir', required=True, help='of a trained run')
  add('--demo', action='store_true', required=True, help='show a user, and end')
  add('--user', default='', help='as the data name it')
  add('--checkpoint', choices=('best', 'latest'), default='best')
  return parser


if __name__ == '__main__':
  last_resort.run_command(main, 'scoring')
