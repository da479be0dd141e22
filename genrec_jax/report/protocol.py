"""What a run was trained and measured on, in words, from its config alone."""

import pathlib
from collections.abc import Iterator, Mapping

from genrec_jax.formatting import format_moment, is_finite

# Of these `data.name` says how files are read, and `data.path` which they are.
_FORMATS = (
  'csv',
  'tsv',
  'parquet',
  'libsvm',
  'sasrec_text',
  'histories',
  'prepared',
)
_FILTERS = {
  'window': 'items that the model reads are never recommended',
  'history': 'items that the user has had before are never recommended',
  'none': 'any item may be recommended, those had before too',
}
_TARGETS = {
  'last': "each user's last event of a period",
  'first': "each user's first event of a period",
  'all': 'every event of a period',
}


def name_data(config: Mapping, workdir: str = '') -> str:
  """What the data are called: their file, or the name of the data set.

  >>> name_data({'data': {'name': 'csv', 'path': 'shop/clicks.csv'}})
  'clicks.csv'
  >>> name_data({'data': {'name': 'ml1m', 'path': '/data/ml-1m'}})
  'ml1m'

  Args:
    config: of the run.
    workdir: of the run, in which data given in memory are kept.
  """
  data = config.get('data')
  if not isinstance(data, Mapping):
    return ''
  name, path = str(data.get('name') or ''), str(data.get('path') or '')
  if name not in _FORMATS or not path:
    return name
  if workdir and pathlib.PurePath(workdir) in pathlib.PurePath(path).parents:
    return 'data in memory'
  return pathlib.PurePath(path.partition('?')[0]).name or path


def describe_size(report: Mapping) -> str:
  """How much the metrics were measured on, '' if that is not known.

  >>> describe_size({
  ...   'metrics': {'test': {'mrr': 0.1}},
  ...   'splits': {'test': {'examples': 943, 'users': 943}},
  ... })
  '943 test users'

  Args:
    report: see `summary`.
  """
  splits = report.get('splits') or {}
  split = next((s for s in ('test', *splits) if report['metrics'].get(s)), '')
  counts = splits.get(split) or {}
  if not is_finite(counts.get('examples')):
    return ''
  name = {'valid': 'validation'}.get(split, split)
  examples, users = counts['examples'], counts.get('users')
  if users is None:
    return f'{examples:,} {name} examples'
  what = 'candidates' if 'requests' in counts else 'targets'
  of = '' if users == examples else f'{examples:,} {what} of '
  return f'{of}{users:,} {name} users'


def describe_protocol(config: Mapping) -> list[str]:
  """Sentences about the split and what is measured; none if it is not known.

  >>> describe_protocol({
  ...   'split': {'name': 'leave_last_out', 'holdout': 1},
  ...   'eval': {'filter_seen': 'none'},
  ... })[0]
  "Each user's last event tests, and all before it trains."
  """
  split, data = config.get('split'), config.get('data')
  evaluation = config.get('eval')
  sentences = []
  if isinstance(split, Mapping):
    sentences += _describe_events(split)
    filter_seen = (evaluation or {}).get('filter_seen')
    if filter_seen in _FILTERS:
      sentences.append(
        'Every target is ranked among the whole catalogue; '
        f'{_FILTERS[filter_seen]}.'
      )
  elif isinstance(data, Mapping) and isinstance(data.get('split'), Mapping):
    sentences += _describe_rows(data)
  return sentences


def _describe_events(split: Mapping) -> Iterator[str]:
  name = split.get('name')
  if name == 'leave_last_out' and split.get('holdout') == 1:
    yield "Each user's last event tests, and all before it trains."
  elif name == 'leave_last_out':
    yield (
      "Each user's last event tests, the one before it validates, and all "
      'before these trains.'
    )
  elif name == 'stream':
    yield (
      f'The last {_format_share(split.get("test_fraction"))} of the sequences '
      f'test, the {_format_share(split.get("valid_fraction"))} before them '
      'validate.'
    )
  elif name == 'global_time':
    begin, test = split.get('valid_from'), split.get('test_from')
    text = f'Events {_format_moment(test)} test'
    if begin is not None:
      text += f', earlier ones {_format_moment(begin)} validate'
    target = _TARGETS.get(split.get('target'), '')
    yield f'{text}' + (f'; targets are {target}.' if target else '.')


def _describe_rows(data: Mapping) -> Iterator[str]:
  split, files = data['split'], data.get('files')
  files = files if isinstance(files, Mapping) else {}
  own = [
    f'{pathlib.PurePath(str(files[name])).name} {verb}'
    for name, verb in (('test', 'tests'), ('valid', 'validates'))
    if files.get(name)
  ]
  if own:
    yield f'{" and ".join(own)}.'
  way = {
    'order': 'The last rows',
    'time': 'The latest rows',
    'random': 'Rows by a draw each',
    'group': 'All rows of a group by one draw',
  }.get(split.get('by'))
  if way and len(own) < 2:
    yield (
      f'{way} test ({_format_share(split.get("test_fraction"))}) and validate '
      f'({_format_share(split.get("valid_fraction"))}), unless there is a file '
      'of that split.'
    )


def _format_share(share: object) -> str:
  return f'{100 * share:.3g}%' if is_finite(share) else 'a share'


def _format_moment(value: object) -> str:
  """Behind a share of the events, or a date."""
  if not is_finite(value):
    return 'from a moment on'
  if 0 < value < 1:
    return f'after the first {100 * value:.3g}% in time'
  return f'from {format_moment(value)} on'
