"""Which variants a command line asks for, all checked before one is started."""

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from genrec_jax import config as config_lib
from genrec_jax.config import renamed, sweeps
from genrec_jax.config.errors import ConfigError
from genrec_jax.config.loading import quote_value
from genrec_jax.config.overrides import apply_overrides

MOST = 10_000  # variants of a sweep
_RANGE = re.compile(r'(-?\d{1,12})\.\.(-?\d{1,12})')
_ODD = re.compile(r'[^\w.=+,-]+')
_LONGEST = 100  # characters of a name
_OPENING, _CLOSING = '([{', ')]}'
Identity = frozenset[tuple[str, str]]  # (key, value) pairs of a variant


@dataclasses.dataclass(frozen=True)
class Variant:
  """What one run of a sweep has for itself.

  Attributes:
    number: from 0 on, in the order in which variants came to the sweep.
    name: of its workdir and its log.
    overrides: (key, text of the value) of each key that it sets.
  """

  number: int
  name: str
  overrides: tuple[tuple[str, str], ...]


def read_variants(
  config: str, names: Sequence[str], sets: Sequence[str]
) -> list[tuple[tuple[str, str], ...]]:
  """What flags say of a sweep: every one with every other.

  Args:
    config: FILE or FILE:variant.
    names: of sweeps of the config, '' for `sweep()`.
    sets: 'key=values' each.

  Returns:
    (key, text of the value) pairs of each variant.

  Raises:
    ConfigError: there are none, or too many.
  """
  parts = [config_lib.load_sweep(config, name, MOST) for name in names]
  parts += [list(parse_set(word)) for word in sets]
  return write_variants(sweeps.product(*parts))


def write_variants(
  variants: Iterable[Mapping[str, object]],
) -> list[tuple[tuple[str, str], ...]]:
  """Variants with their values as texts.

  >>> write_variants([{'seed': 0}, {'seed': 1}])
  [(('seed', '0'),), (('seed', '1'),)]

  Args:
    variants: {dotted key: value} each.

  Raises:
    ConfigError: there are none, or too many.
  """
  written = []
  for values in variants:
    if not isinstance(values, Mapping):
      raise ConfigError(
        f'a variant is {quote_value(values)}, must be a dictionary, such as '
        "{'optimizer.learning_rate': 0.001}"
      )
    written.append(
      tuple((str(key), write_value(key, v)) for key, v in values.items())
    )
    if len(written) > MOST:
      raise ConfigError(f'the sweep has more than {MOST:,} variants')
  if not any(written):
    raise ConfigError(
      'the sweep is empty: it has no variants'
      if not written
      else 'the sweep sets no key; name a sweep of the config by --sweep=NAME, '
      'or give values by --set KEY=VALUE,VALUE'
    )
  return written


def parse_set(word: str) -> Iterator[sweeps.Variant]:
  """The variants of `--set`, whose values are texts.

  >>> [v['seed'] for v in parse_set('seed=0..2')]
  ['0', '1', '2']
  >>> [v['model.hidden'] for v in parse_set('model.hidden=(64,),(64, 32)')]
  ['(64,)', '(64, 32)']

  Args:
    word: 'key=value,value' or 'key=first..last', the last one included.
  """
  key, equals, text = word.partition('=')
  key = key.strip().removeprefix('--').removeprefix('config.')
  if not (key and equals and text.strip()):
    raise ConfigError(
      f'--set takes KEY=VALUE,VALUE or KEY=FIRST..LAST, not {word!r}'
    )
  if span := _RANGE.fullmatch(text.strip()):
    first, last = int(span[1]), int(span[2])
    if not 0 <= last - first < MOST:
      raise ConfigError(
        f'--set {word}: {first}..{last} must go upwards, and have at most '
        f'{MOST:,} numbers'
      )
    return sweeps.vary(key, map(str, range(first, last + 1)))
  return sweeps.vary(key, _split_values(word, text))


def _split_values(word: str, text: str) -> list[str]:
  """Cuts at the commas that no bracket holds together."""
  values, depth = [''], 0
  for letter in text:
    depth += (letter in _OPENING) - (letter in _CLOSING)
    if letter == ',' and not depth:
      values.append('')
    else:
      values[-1] += letter
  values = [value.strip() for value in values]
  if depth or '' in values:
    what = 'a bracket is open' if depth else 'a value is empty'
    raise ConfigError(f'--set {word}: {what}')
  return values


def write_value(key: str, value) -> str:
  """A value of a sweep as a command line has it.

  >>> write_value('eval.ks', [1, 10]), write_value('loss.logq', True)
  ('(1, 10)', 'true')
  """
  if hasattr(value, 'item') and not getattr(value, 'shape', ()):
    value = value.item()  # of NumPy
  if isinstance(value, str):
    return value
  if isinstance(value, bool):
    return str(value).lower()
  if value is None or isinstance(value, int | float):
    return repr(value)
  if isinstance(value, list | tuple):
    return repr(tuple(tuple(v) if isinstance(v, list) else v for v in value))
  raise ConfigError(
    f'a sweep sets {quote_value(key)} to {quote_value(value)}, which is '
    f'a {type(value).__name__}; values are numbers, words, True, False, None '
    'and tuples of them'
  )


def check_variants(
  config: str,
  overrides: Sequence[str],
  variants: Iterable[Sequence[tuple[str, str]]],
) -> list[Identity]:
  """Loads every variant as its run will.

  Args:
    config: FILE or FILE:variant.
    overrides: 'a.b=value' each, of all runs.
    variants: (key, text) pairs of each.

  Returns:
    What each variant sets: equal where two are one, however they are written.

  Raises:
    ConfigError: a variant cannot be, or is there twice; it is named.
  """
  raw = config_lib.load(config)
  fixed = {override.partition('=')[0] for override in overrides}
  seen: dict[Identity, int] = {}
  for at, variant in enumerate(variants):
    if twice := sorted(fixed & {key for key, _ in variant}):
      raise ConfigError(
        f'--config.{twice[0]} sets a key of all runs, and the sweep varies it: '
        'leave one out'
      )
    own = raw.copy_and_resolve_references()
    words = [f'{key}={text}' for key, text in variant]
    try:
      with own.unlocked():
        apply_overrides(own, [*overrides, *words])
    except ConfigError as error:
      raise ConfigError(
        f'variant {at} ({describe_variant(variant)}): {error}'
      ) from error
    identity = frozenset(
      (key, repr(find_value(own, key)))
      for key in (renamed.translate(key, text)[0] for key, text in variant)
    )
    same = seen.setdefault(identity, at)
    if same != at:
      raise ConfigError(
        f'variants {same} and {at} are one and the same: '
        f'{describe_variant(variant)}'
      )
  return list(seen)


def find_value(config, key: str) -> object:
  """What a config has at a dotted key.

  >>> find_value(config_lib.load('quickstart'), 'train.shuffle')
  True
  """
  for part in key.split('.'):
    config = config[part]
  return config


def name_variants(
  variants: Sequence[Sequence[tuple[str, str]]], first: int = 0
) -> list[Variant]:
  """Gives variants numbers and names.

  >>> [v.name for v in name_variants([(('model.dim', '8'), ('seed', '1'))])]
  ['000_dim=8_seed=1']

  Args:
    variants: (key, text) pairs of each.
    first: the number of the first one.
  """
  short = shorten_keys({key for variant in variants for key, _ in variant})
  named = []
  for number, variant in enumerate(variants, first):
    words = [f'{short[key]}={text}' for key, text in variant]
    name = _ODD.sub('-', '_'.join([f'{number:03d}', *words]))
    named.append(Variant(number, name[:_LONGEST].rstrip('.-_'), tuple(variant)))
  return named


def shorten_keys(keys: Iterable[str]) -> dict[str, str]:
  """Key -> as much of its end as tells it from the others.

  >>> shorten_keys(['optimizer.eps', 'optimizer.rows.eps'])
  {'optimizer.eps': 'optimizer.eps', 'optimizer.rows.eps': 'rows.eps'}
  """
  keys = sorted(keys)
  short = {}
  for key in keys:
    parts = key.split('.')
    for length in range(1, len(parts) + 1):
      end = '.'.join(parts[-length:])
      if sum(f'.{other}'.endswith(f'.{end}') for other in keys) == 1:
        break
    short[key] = end
  return short


def describe_variant(variant: Sequence[tuple[str, str]]) -> str:
  """As `a.b=value a.c=value`."""
  return ' '.join(f'{key}={text}' for key, text in variant) or 'nothing set'


def list_varied(variants: Iterable[Variant]) -> list[str]:
  """The keys that variants set, in the order in which they come up."""
  keys: Mapping[str, None] = {}
  for variant in variants:
    keys |= dict.fromkeys(key for key, _ in variant.overrides)
  return list(keys)
