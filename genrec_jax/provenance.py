"""Where a run comes from: the command, the code, the moment."""

import functools
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence

# user:password@ in a URL, up to the last @: keys of stores hold slashes.
_LOGIN = re.compile(r'(?<=://)(?:[^\s:\'"]*:[^\s\'"]*|[^/\s@\'"]+)@')
_QUERY = re.compile(r'(\w+://[^\s?\'"]*\?)[^\s\'"]+')  # signatures, say
_NAMES = (
  r'(?:password|passwd|passphrase|pwd|secret|token(?!s)|credential|bearer'
  r'|(?:api|access|account|private)_?key)[\w-]*'
)
# Credentials of their own: --token=..., --token ..., secret_access_key: ...
_SECRET = re.compile(
  rf'({_NAMES}[\'"]?\s*[=:]\s*|--?[\w.-]*{_NAMES}\s+)'
  r'(?:\'[^\']*\'|"[^"]*"|[^\s\'"&,]+)',
  re.IGNORECASE,
)
_SECRET_KEY = re.compile(_NAMES, re.IGNORECASE)
_MASK = '***'
# Sections of a config whose keys are columns, which may be called anything.
_OF_COLUMNS = ('extras', 'features', 'label_kinds', 'label_weights')


class _Command:
  """The command line of this process, once `remember_command` has been told.

  Attributes:
    argv: its words.
    overrides: 'a.b=value' of each key that it sets.
  """

  argv: Sequence[str] = ()
  overrides: Sequence[str] = ()


def remember_command(argv: Sequence[str], overrides: Sequence[str]) -> None:
  """Keeps what was typed, for the report of the run.

  Args:
    argv: all words.
    overrides: 'a.b=value' of each key among them.
  """
  _Command.argv, _Command.overrides = tuple(argv), tuple(overrides)


def describe_command() -> str:
  """The command line as it can be typed again, without secrets; '' for none."""
  if not _Command.argv:
    return ''
  program, *words = _Command.argv
  path = pathlib.Path(program)
  # What `python -m genrec_jax.main` leaves of itself in argv.
  if path.suffix == '.py' and path.parent.name == 'genrec_jax':
    program = f'python -m genrec_jax.{path.stem}'
  else:
    program = shlex.quote(path.name)
  return mask_secrets(' '.join([program, *map(shlex.quote, words)]))


def list_set_keys() -> list[str]:
  """The config keys that the command line sets."""
  return [word.partition('=')[0] for word in _Command.overrides]


def mask_secrets(text: str) -> str:
  """Hides passwords, and what URLs have behind a question mark.

  >>> mask_secrets('s3://key:secret@bucket/a.csv')
  's3://***@bucket/a.csv'
  >>> mask_secrets('https://x.org/log.csv?sig=abc&part=2')
  'https://x.org/log.csv?***'
  >>> mask_secrets('--token abc --config.train.steps=3')
  '--token *** --config.train.steps=3'
  """
  text = _LOGIN.sub(f'{_MASK}@', text)
  text = _QUERY.sub(rf'\1{_MASK}', text)
  return _SECRET.sub(rf'\1{_MASK}', text)


def mask_all(value, *, of_columns: bool = False):
  """The same with `mask_secrets` of every text in lists and dictionaries.

  >>> mask_all({'token': 'abc', 'features': {'token': 'numeric'}})
  {'token': '***', 'features': {'token': 'numeric'}}

  Args:
    value: what JSON can say.
    of_columns: whether its keys are names of columns.
  """
  if isinstance(value, str):
    return mask_secrets(value)
  if isinstance(value, dict):
    return {
      key: _MASK
      if isinstance(x, str)
      and x
      and not of_columns
      and _SECRET_KEY.search(str(key))
      else mask_all(x, of_columns=key in _OF_COLUMNS)
      for key, x in value.items()
    }
  if isinstance(value, list | tuple):
    return type(value)(map(mask_all, value))
  return value


def holds_secrets(value) -> bool:
  """Whether `mask_all` hides anything of it.

  >>> holds_secrets({'path': 's3://key:secret@bucket/a.csv'})
  True
  >>> holds_secrets({'path': 's3://bucket/a.csv', 'seed': 3})
  False
  """
  # As texts: NaN is not equal to itself.
  return repr(mask_all(value)) != repr(value)


@functools.cache
def find_commit(root: pathlib.Path | None = None) -> str | None:
  """The git commit of the checkout that the package lies in, if it does.

  Args:
    root: of the checkout; None is the directory of the package's directory.

  Returns:
    Its hash, with '+' behind it where files differ from it, or None.
  """
  root = root or pathlib.Path(__file__).parents[1]
  # Not of a checkout further up, which is somebody else's.
  if not (root / '.git').exists():
    return None

  def ask_git(*words: str) -> str:
    done = subprocess.run(
      ['git', '-C', str(root), *words],
      capture_output=True,
      text=True,
      timeout=10,
      check=True,
    )
    return done.stdout.strip()

  try:
    commit = ask_git('rev-parse', '--short=12', 'HEAD')
    changed = ask_git('status', '--porcelain', '--untracked-files=no')
  except (OSError, subprocess.SubprocessError):
    return None  # no git, or a checkout that belongs to somebody else
  return commit + '+' * bool(changed)


def find_version() -> str:
  """The version of this package."""
  return sys.modules[__package__].__version__
