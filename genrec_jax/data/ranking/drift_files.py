"""Writes the generated stream that drifts as files, window by window.

    python -m genrec_jax.data.ranking.drift_files --out DIR \\
        --streams feed=0,1 video=2 --rows 20000 --windows 48

For each stream and each window k, DIR/STREAM has

    impressions-00000k.parquet  example_id, time, segment, c0, c1, ...: the rows
                                of the window, in the order of time
    labels-00000k.parquet       example_id, time, label: the clicks whose label
                                arrives in the window, at that time, in no order

A row without a click has no label, ever, and some labels may be lost: whoever
reads them has to decide how long to wait. A segment may be in several streams,
which then have the same rows with the same ids. Files appear whole or not at
all; those that are there are left as they are, so a command that was cut off
goes on, and more windows may be added later. What the files hold depends on the
options of the stream alone.
"""

import argparse
import dataclasses
import inspect
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from genrec_jax import last_resort, progress
from genrec_jax.data import scratch
from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking import drift
from genrec_jax.data.ranking.mixing import mix_bits

_OPTIONS_FILE = '.drift.json'  # hidden from who reads all files of a directory
_NAME = re.compile(r'[A-Za-z0-9_-]+')


def name_files(
  directory: str | pathlib.Path, stream: str, k: int
) -> tuple[pathlib.Path, pathlib.Path]:
  """The impressions and the labels of a window.

  >>> [path.name for path in name_files('logs', 'feed', 12)]
  ['impressions-000012.parquet', 'labels-000012.parquet']

  Args:
    directory: of all streams.
    stream: its name.
    k: the window.
  """
  inside = pathlib.Path(directory) / stream
  return (
    inside / f'impressions-{k:06d}.parquet',
    inside / f'labels-{k:06d}.parquet',
  )


def write_events(
  log: drift.DriftLog,
  directory: str | pathlib.Path,
  streams: Mapping[str, Sequence[int]],
  first: int = 0,
  last: int | None = None,
) -> Iterator[tuple[int, int, int]]:
  """Writes the files of some windows; nothing happens before it is iterated.

  Args:
    log: the stream of rows.
    directory: made if need be.
    streams: name of a directory -> the segments whose rows it gets.
    first: the first window.
    last: the window behind the last one; None for `windows` of the log.

  Yields:
    For each window: its number, the rows and the labels that it has, those of
    several streams counted several times. Windows whose files are all there
    are passed over.

  Raises:
    ValueError: the streams, or a range of windows, that cannot be, or files
      that were written with other options.
  """
  directory = pathlib.Path(directory)
  last = log.windows if last is None else last
  _check_streams(log, streams)
  if not 0 <= first < last <= log.windows:
    raise ValueError(
      f'windows {first} to {last - 1} are not windows of the stream, which are '
      f'0 to {log.windows - 1} (data.drift.windows)'
    )
  for name, segments in streams.items():
    _claim_directory(log, directory / name, segments)
  missing = [
    k
    for k in range(first, last)
    if not all(p.exists() for s in streams for p in name_files(directory, s, k))
  ]
  if not missing:
    return
  for k, window, clicks in _follow_labels(log, missing[0], last):
    if k not in missing:
      continue
    rows = labels = 0
    for name, segments in streams.items():
      shown = np.isin(window.segment, segments)
      clicked = np.isin(clicks['segment'], segments)
      impressions_path, labels_path = name_files(directory, name, k)
      _write_table(list_impressions(window, shown), impressions_path)
      arrived = {
        column: clicks[column][clicked]
        for column in ('example_id', 'time', 'label')
      }
      _write_table(arrived, labels_path)
      rows, labels = rows + int(shown.sum()), labels + int(clicked.sum())
    yield k, rows, labels


def _check_streams(
  log: drift.DriftLog, streams: Mapping[str, Sequence[int]]
) -> None:
  if not streams:
    raise ValueError('there are no streams to write')
  for name, segments in streams.items():
    if not _NAME.fullmatch(name):
      raise ValueError(
        f'stream {name!r} names a directory: letters, digits, _ and - alone'
      )
    if not segments:
      raise ValueError(f'stream {name!r} has no segments')
    for segment in segments:
      if not 0 <= segment < log.segments:
        raise ValueError(
          f'stream {name!r} has segment {segment}; segments are 0 to '
          f'{log.segments - 1} (data.drift.segments)'
        )
      if list(segments).count(segment) > 1:
        raise ValueError(f'stream {name!r} has segment {segment} twice')


def _claim_directory(
  log: drift.DriftLog, directory: pathlib.Path, segments: Sequence[int]
) -> None:
  """Leaves the options in a directory, and refuses one that has others."""
  options = dataclasses.asdict(log) | {'in_stream': sorted(segments)}
  # A longer stream begins with a shorter one.
  del options['windows']
  path = directory / _OPTIONS_FILE
  if path.exists():
    try:
      there = json.loads(path.read_text())
    except ValueError:
      there = {}
    for key in options:
      if there.get(key) != options[key]:
        raise ValueError(
          f'{directory} has files of another stream, with {key}='
          f'{there.get(key)!r} and not {options[key]!r}; choose another '
          'directory, or remove it first'
        )
    return
  directory.mkdir(parents=True, exist_ok=True)
  with scratch.replaced_file(path) as partial:
    partial.write_text(json.dumps(options, indent=1) + '\n')


def _follow_labels(
  log: drift.DriftLog, first: int, last: int
) -> Iterator[tuple[int, drift.DriftWindow, dict[str, np.ndarray]]]:
  """Windows, each with the clicks whose labels arrive in it."""
  stream, waiting = drift.DriftStream(log), []
  # No label comes later than this, so that no earlier window matters.
  longest = math.ceil(drift.LONGEST_DELAY * log.delay) + 1
  for k in range(max(0, first - longest), last):
    window = stream.window(k)
    ever = window.label_time != drift.NEVER
    waiting.append(
      {
        'example_id': window.example_id[ever],
        'time': window.label_time[ever],
        'segment': window.segment[ever],
        'label': window.label[ever],
      }
    )
    clicks = {c: np.concatenate([w[c] for w in waiting]) for c in waiting[0]}
    due = clicks['time'] < (k + 1) * log.window_s
    waiting = [{c: x[~due] for c, x in clicks.items()}]
    if k >= first:
      arrived = {c: x[due] for c, x in clicks.items()}
      order = _draw_order(log.seed, arrived['example_id'])
      yield k, window, {c: x[order] for c, x in arrived.items()}


def _draw_order(seed: int, example_id: np.ndarray) -> np.ndarray:
  """An order by a hash of the ids, which is the same in every stream."""
  salt = mix_bits(np.array([seed], np.uint64) + np.uint64(1))
  return np.argsort(mix_bits(example_id.astype(np.uint64) ^ salt))


def list_impressions(
  window: drift.DriftWindow, keep: np.ndarray | slice = slice(None)
) -> dict[str, np.ndarray]:
  """The columns that are known when the rows of a window are shown.

  Args:
    window: of the stream.
    keep: which of its rows.
  """
  return {
    'example_id': window.example_id[keep],
    'time': window.time[keep],
    'segment': window.segment[keep],
    **{f'c{i}': ids[keep] for i, ids in enumerate(window.ids.T)},
  }


def _write_table(columns: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
  if path.exists():
    return
  with scratch.replaced_file(path) as partial:
    pq.write_table(pa.table(dict(columns)), partial)


def main(argv: list[str] | None = None) -> int:
  """Writes the files that the command line asks for."""
  args = vars(_make_parser().parse_args(argv))
  out, streams = args.pop('out'), args.pop('streams')
  first, last = args.pop('first'), args.pop('last')
  log = drift.DriftLog(**args)
  names = [name for name, _ in streams]
  for name in names:
    if names.count(name) > 1:
      raise ValueError(
        f'--streams has {name!r} twice; give it all segments once'
      )
  streams = dict(streams) or {'all': range(log.segments)}
  last = log.windows if last is None else last
  total = windows = labels = 0
  shown = progress.Progress(last, 'window', progress_unit='rows')
  with shown:
    for k, rows, arrived in write_events(log, out, streams, first, last):
      shown.update(k + 1, tokens=rows)
      total, labels, windows = total + rows, labels + arrived, windows + 1
  last_resort.print_result(
    f'{out}: wrote {windows:,} windows of {", ".join(streams)}: {total:,} '
    f'impressions, {labels:,} labels'
  )
  return 0


def _make_parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
    prog='python -m genrec_jax.data.ranking.drift_files',
    usage='%(prog)s --out DIR [options]',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('--out', required=True, help='the directory of the streams')
  add(
    '--streams',
    nargs='+',
    default=[],
    type=_parse_stream,
    metavar='NAME=SEGMENT,...',
    help='streams and their segments (one, named all, of all segments)',
  )
  add('--first', type=int, default=0, help='the first window to write (0)')
  add('--last', type=int, help='the window behind the last one (--windows)')
  sentences = _read_sentences()
  options = parser.add_argument_group('the stream')
  for field in dataclasses.fields(drift.DriftLog):
    options.add_argument(
      f'--{field.name}',
      type=field.type,
      default=field.default,
      metavar=field.type.__name__.upper(),
      help=f'{sentences.get(field.name, "")} ({field.default})',
    )
  return parser


def _parse_stream(text: str) -> tuple[str, tuple[int, ...]]:
  name, found, segments = text.partition('=')
  try:
    return name, tuple(int(segment) for segment in segments.split(','))
  except ValueError:
    raise argparse.ArgumentTypeError(
      f'{text!r} is not a name and its segments, such as feed=0,1'
    ) from None


def _read_sentences() -> dict[str, str]:
  """What the docstring of the options says of each."""
  text = inspect.getdoc(drift.DriftLog) or ''  # '' where Python drops them
  entries = re.findall(r'^  (\w+): (.*(?:\n    .*)*)', text, re.MULTILINE)
  # A percent sign means something to argparse.
  return {
    name: ' '.join(words.split()).rstrip('.').replace('%', '%%')
    for name, words in entries
  }


if __name__ == '__main__':
  last_resort.run_command(main, 'writing')
