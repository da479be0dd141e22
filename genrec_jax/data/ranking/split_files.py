"""Which files are of which split: named by the config, or by their own names.

A file that the config names goes before a pattern of the config, and a pattern
goes before what a name such as `train.csv` says. No file is of two splits.
"""

import dataclasses
import logging
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import source_files
from genrec_jax.data.quoting import escape, list_names
from genrec_jax.data.ranking.store import SPLITS

# Word of a file's name -> its split. Some write `eval` for the validation and
# some for the test, so that it is no answer.
WORDS = {
  **dict.fromkeys(('train', 'training'), 'train'),
  **dict.fromkeys(('valid', 'validation', 'val', 'dev'), 'valid'),
  **dict.fromkeys(('test', 'testing'), 'test'),
  **dict.fromkeys(('eval', 'evaluation'), ''),
}
KEY = 'data.names_give_splits'
LOG = logging.getLogger('genrec_jax')

Files = dict[str, list[pathlib.Path]]


@dataclasses.dataclass(frozen=True)
class _Name:
  """What the name of a file, or of a directory of files, says.

  Attributes:
    place: the file or the directory.
    files: those that it stands for.
    splits: those of its words; one where the name is clear.
    rest: its other words, which the names of one data set share.
    kind: its words for splits and its suffix, which the files of one split
      share.
  """

  place: pathlib.Path
  files: tuple[pathlib.Path, ...]
  splits: frozenset[str]
  rest: tuple[str, ...]
  kind: tuple


def _by_number(path: pathlib.Path) -> tuple:
  """Sorts day_9 before day_10."""
  words = re.split(r'(\d+)', path.name)
  return [int(w) if w.isdecimal() else w for w in words], str(path)


def _is_pattern(name: str) -> bool:
  return any(mark in name for mark in '*?[')


def _identify(path: pathlib.Path) -> tuple[int, int]:
  """The same for every link and every spelling of a path."""
  stat = path.stat()
  return stat.st_dev, stat.st_ino


def _find_named(
  base: pathlib.Path, name: str, split: str
) -> list[pathlib.Path]:
  """The files `name` below `base`: one, or those of a pattern."""
  paths = [base / name]
  if _is_pattern(name):
    paths = sorted((p for p in base.glob(name) if p.is_file()), key=_by_number)
  if not paths or not paths[0].is_file():
    raise FileNotFoundError(
      f'{base / name}: no such file (data.files.{split})'
      + hint_nearest(name, [p.name for p in base.iterdir()])
    )
  return paths


def _read_name(place: pathlib.Path, suffixes: tuple[str, ...]) -> _Name:
  name, files = place.name.lower(), (place,)
  suffix = max((s for s in suffixes if name.endswith(s)), key=len, default='')
  if place.is_dir():
    files = tuple(
      p
      for p in place.rglob('*')
      if _is_data_file(p, suffixes)
      and not any(part[0] in '._' for part in p.relative_to(place).parts)
    )
    suffix = 'directory'
  stem = name.removesuffix(suffix)
  words = re.findall('[a-z]+', stem)
  said = [word for word in words if word in WORDS]
  rest = tuple(word for word in words if word not in WORDS)
  splits = frozenset(WORDS[word] for word in said)
  return _Name(place, files, splits, rest, (*said, suffix))


def _is_data_file(path: pathlib.Path, suffixes: tuple[str, ...]) -> bool:
  is_hidden = path.name[:1] in '._'
  is_ours = path.name.lower().endswith(suffixes) and not is_hidden
  return is_ours and path.is_file()


def _find_candidates(
  base: pathlib.Path, suffixes: tuple[str, ...], used: set
) -> list[_Name]:
  """The files of a directory, and its directories that are called a split."""
  candidates = []
  for place in sorted(base.iterdir(), key=_by_number):
    words = set(re.findall('[a-z]+', place.name.lower()))
    if _is_data_file(place, suffixes) or (place.is_dir() and words & {*WORDS}):
      name = _read_name(place, suffixes)
      files = tuple(p for p in name.files if _identify(p) not in used)
      candidates += [dataclasses.replace(name, files=files)] if files else []
  return candidates


def _list_files(paths: Sequence[pathlib.Path], base: pathlib.Path) -> str:
  names = [
    str(p.relative_to(base) if p.is_relative_to(base) else p) for p in paths
  ]
  return list_names(names)


def _find_given(
  given: Mapping[str, str], path: pathlib.Path, base: pathlib.Path, log
) -> Files:
  """The files that the config names, each in one split.

  Args:
    given: split -> name or pattern, of `data.files`.
    path: what `data.path` names; a file is that of training, unless
      `data.files.train` names another.
    base: the directory of the names.
    log: called with a message where a pattern leaves a file to another split.
  """
  files = {s: _find_named(base, name, s) for s, name in given.items()}
  keys = {s: f'data.files.{s}={name!r}' for s, name in given.items()}
  if path.is_file() and 'train' not in files:
    files['train'], keys['train'] = [path], f'data.path={str(path)!r}'
  patterns = [s for s in files if _is_pattern(given.get(s, ''))]
  owners = {}  # file -> the split that it is of
  # Single names first: patterns give way to them.
  for split in sorted(files, key=lambda s: s in patterns):
    kept, left = [], []
    for file in files[split]:
      owner = owners.setdefault(_identify(file), split)
      if owner == split:
        kept.append(file)
        continue
      left.append(file)
      if split not in patterns or owner in patterns:
        raise ValueError(
          f'{file} is in two splits, by {keys[owner]} and {keys[split]}, whose '
          'metrics would be of rows that were seen before; give each split '
          'files of its own'
        )
    if not kept:
      raise ValueError(
        f'{keys[split]} leaves the {split} split no file: all are in other '
        f'splits ({_list_files(left, base)})'
      )
    if left:
      log(
        f'{keys[split]} is read without {_list_files(left, base)}, which '
        'data.files names for another split'
      )
    files[split] = kept
  return files


def _is_clear(name: _Name) -> bool:
  return len(name.splits) == 1 and '' not in name.splits


def _choose_named(
  names: Sequence[_Name], wanted: Sequence[str], rests: set, base
) -> Files:
  """Split -> the files whose names say so, for the splits that are wanted.

  Args:
    names: of the files that are of no split yet.
    wanted: the splits.
    rests: the other words of the names of files that have a split; they
      choose where there are several data sets.
    base: the directory, for messages.
  """
  clear = [n for n in names if _is_clear(n) and n.splits <= {*wanted}]
  meant = {*wanted, ''} if {'valid', 'test'} & {*wanted} else {*wanted}
  unclear = [n for n in names if not _is_clear(n) and n.splits & meant]
  if len({n.rest for n in clear}) > 1 and rests:
    clear = [n for n in clear if n.rest in rests]
  kinds = {}
  for name in clear:
    kinds.setdefault(*name.splits, set()).add(name.kind)
  several = len({n.rest for n in clear}) > 1
  several |= any(len(kind) > 1 for kind in kinds.values())
  if several or (unclear and len(names) > 1):
    shown = [n.place for n in (clear if several else [*clear, *unclear])]
    keys = ', '.join(f'data.files.{s}' for s in wanted)
    raise ValueError(
      f'{base}: the names of these files do not say which of them are of which '
      f'split: {_list_files(sorted(shown, key=_by_number), base)}; set {keys}, '
      f'or {KEY}=false to read the directory whole'
    )
  files = {}
  for name in clear:
    files.setdefault(*name.splits, []).extend(name.files)
  return {s: sorted(paths, key=_by_number) for s, paths in files.items()}


def find_files(
  cfg: Mapping,
  path: pathlib.Path,
  known: Mapping[str, tuple[str, ...]],
  suffixes: tuple[str, ...],
  missing_labels: Callable[[pathlib.Path], Sequence[str]] = lambda _: (),
  log: Callable[[str], None] = print,
) -> Files:
  """Split -> its files; 'train' is always among them.

  Args:
    cfg: `config.data`.
    path: what `data.path` names.
    known: split -> names that the files of this layout usually have.
    suffixes: of the files that a directory is read for.
    missing_labels: file -> the labels that it has no column for. A file that
      is of a split by its name alone is left out when it lacks one, as a file
      that is to be scored does.
    log: called with a list of the files, and with what was decided.

  Raises:
    FileNotFoundError: a file that is named is not there, or none is to train
      on.
    ValueError: a file is in two splits, or the names are ambiguous.
  """
  given = {s: n for s, n in dict(cfg.get('files', None) or {}).items() if n}
  for split in cfg.get('files', None) or {}:
    if split not in SPLITS:
      raise ValueError(
        f'data.files.{split}: the splits are {", ".join(SPLITS)}'
      )
  base = path if path.is_dir() else path.parent
  files = _find_given(given, path, base, log)
  used = {_identify(p) for paths in files.values() for p in paths}
  for split, usual in known.items():
    there = [p for n in usual if path.is_dir() and (p := path / n).is_file()]
    there = [p for p in there if _identify(p) not in used]
    if split not in files and there:
      files[split] = there[:1]
      used.add(_identify(there[0]))
  wanted = [s for s in SPLITS if s not in files]
  by_name, others = {}, []
  ours = [path, *(base / name for name in given.values())]
  ours = [_read_name(p, suffixes) for p in ours if p.is_file()]
  rests = {n.rest for n in ours if n.splits}
  beside_train = any(n.place == path and n.splits == {'train'} for n in ours)
  if wanted and (path.is_dir() or beside_train):
    others = _find_candidates(base, suffixes, used)
    if cfg.get('names_give_splits', True):
      names = others
      if path.is_file():  # only those whose names differ in the split alone
        names = [n for n in names if n.rest in rests and _is_clear(n)]
      by_name = _choose_named(names, wanted, rests, base)
      others = [n for n in others if not n.splits]
    else:
      others = [n for n in others if n.place.is_file()]
  for split in [s for s in by_name if s != 'train']:
    if missing := missing_labels(by_name[split][0]):
      log(
        f'{by_name[split][0]} is not used as the {split} split: it has no '
        f'column {list_names(list(missing))} (data.labels)'
      )
      del by_name[split]
  _refuse_shared(by_name)
  files = by_name | files
  if 'train' not in files:
    if known or not others:
      raise FileNotFoundError(
        f'{path}: no file to train on; set config.data.files.train to its name'
        + source_files.hint_workbook(base)
      )
    files['train'] = [p for n in others for p in n.files]
    others = []
  files = {split: files[split] for split in SPLITS if split in files}
  _log_files(files, by_name, [n.place for n in others], base, log)
  return files


def _refuse_shared(by_name: Files) -> None:
  """Refuses a file that two names, one of them a link, give to two splits."""
  owners = {}
  for split, paths in by_name.items():
    for path in paths:
      owner, other = owners.setdefault(_identify(path), (split, path))
      if owner != split:
        raise ValueError(
          f'{other} and {path} are one file, in two splits by their names; '
          f'remove one of them, or set data.files.{split}'
        )


def _log_files(files: Files, by_name: Files, others, base, log) -> None:
  if sum(map(len, files.values())) == 1 and not others:
    return  # the file of data.path
  parts = []
  for split, paths in files.items():
    why = ', by its name' if split in by_name else ''
    parts.append(f'{split}{why}: {_list_files(paths, base)}')
  if by_name and others:
    parts.append(f'not read: {_list_files(others, base)}')
  log(f'files of {escape(str(base))}: {"; ".join(parts)}')
  in_train = [
    p
    for p in files['train']
    if 'train' not in by_name
    and len(files['train']) > 1
    and _read_name(p, ()).splits & {'valid', 'test'}
  ]
  if in_train:
    LOG.warning(
      'the names of %s say that they are not for training, and they are '
      'trained on; set data.files.valid and data.files.test if that is not '
      'meant',
      _list_files(in_train, base),
    )
