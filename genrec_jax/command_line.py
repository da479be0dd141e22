"""The words of the command line: commands, flags, help.

`genrec COMMAND WORDS` says the same as flags of `python -m genrec_jax.main`:
`COMMANDS` has what each command sets, and `translate` is all there is to it.
"""

import collections
import dataclasses
import difflib
import pathlib
import sys
import textwrap
from collections.abc import Mapping, Sequence

from absl import app, flags

from genrec_jax import config as config_lib
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.config.loading import OPEN, flatten, hint_nearest
from genrec_jax.config.model_choice import MODELS_OF

FLAGS = flags.FLAGS
MODES = {  # -> what it does
  'train': 'training',
  'eval': 'evaluating',
  'predict': 'predicting',
  'report': 'writing the report',
  'plan': 'planning',
  'learn_hash': 'learning which ids share a row',
  'search': 'searching for a model',
}

# --help shows them in this order.
flags.DEFINE_string(
  'config',
  None,
  'The experiment: a name that `genrec configs` lists, or FILE.py, each with '
  ':variant behind it or not (every config knows :smoke, a run of seconds). '
  'Without it, the config of the run in --workdir.',
)
flags.DEFINE_string(
  'workdir', None, 'Directory of the run; made when it does not exist.'
)
flags.DEFINE_enum(
  'mode', 'train', list(MODES), 'What to do; the commands above say it.'
)
flags.DEFINE_string(
  'output',
  None,
  'predict: the file to write, .csv, .jsonl or .parquet; short for '
  '--config.predict.output.',
)
flags.DEFINE_bool('print_config', False, 'Print the resolved config and stop.')
flags.DEFINE_integer(
  'fake_devices',
  0,
  'Split this CPU into so many devices, to try a mesh without having one.',
)
flags.DEFINE_string(
  'compile_for',
  '',
  'plan: compile the step as well, and say what memory the compiler finds it '
  'to need: on a slice of TPUs that need not be there, such as v5p:4x4x4 '
  '(needs the libtpu wheel), or on the devices that are "here".',
)
flags.DEFINE_integer('processes', 0, 'Several processes: how many.')
flags.DEFINE_integer('process', -1, 'Several processes: number of this one.')
flags.DEFINE_string(
  'coordinator',
  '',
  'Several processes: host:port of process 0. Slurm, MPI, Kubernetes and TPU '
  'pods are recognised without flags; auto leaves it to JAX.',
)
_OURS = {  # in the order of --help -> what stands behind the name
  'config': '=CONFIG',
  'workdir': '=DIR',
  'mode': f'={"|".join(MODES)}',
  'output': '=FILE',
  'print_config': '',
  'fake_devices': '=N',
  'compile_for': '=SLICE',
  'processes': '=N',
  'process': '=N',
  'coordinator': '=HOST:PORT',
}


@dataclasses.dataclass(frozen=True)
class Command:
  """What a command says in flags.

  Attributes:
    sets: flag -> its value.
    words: the flags and keys that are set by the words behind the command.
    usage: these words, for --help.
    help: what it does.
  """

  sets: Mapping[str, str | bool]
  words: Sequence[str]
  usage: str
  help: str


COMMANDS = {
  'train': Command(
    {'mode': 'train'},
    ('config',),
    'CONFIG --workdir=DIR',
    'Train, evaluate and write a report. What DIR holds of the run is '
    'continued; then CONFIG may be left out.',
  ),
  'eval': Command(
    {'mode': 'eval'},
    ('workdir',),
    'DIR',
    'Evaluate the best (or latest) checkpoint of a run.',
  ),
  'predict': Command(
    {'mode': 'predict'},
    ('workdir', 'config.predict.input'),
    'DIR [FILE] [--output=FILE]',
    'Write the top items for the histories of FILE, or the probabilities of '
    'its examples; without FILE, of the data of the run.',
  ),
  'report': Command(
    {'mode': 'report'},
    ('workdir',),
    'DIR',
    'Write report.html anew from report.json and metrics.jsonl of a run.',
  ),
  'plan': Command(
    {'mode': 'plan'},
    ('config',),
    'CONFIG --workdir=DIR',
    'Print where the tables would lie on the hardware of '
    '--config.parallel.topology, which need not be there, and what a step '
    'would cost; refuse what does not fit.',
  ),
  'learn_hash': Command(
    {'mode': 'learn_hash'},
    ('config',),
    'CONFIG --workdir=DIR',
    'Learn which ids of large tables share a row (--config.hash.rows), and '
    'train the model with such maps; the same command goes on.',
  ),
  'search': Command(
    {'mode': 'search'},
    ('config',),
    'CONFIG --workdir=DIR',
    'Find widths, depth and tables of the model by gradient '
    '(--config.search.spaces), and train what was found; the same command goes '
    'on.',
  ),
  'config': Command(
    {'print_config': True},
    ('config',),
    'CONFIG',
    'Print every key of a config and its value.',
  ),
}
LISTS = {
  'configs': 'List the configs that come with the library.',
  'models': 'List the models.',
}
OTHERS = {  # with flags of their own
  'sweep': 'Run many variants of a config, some at a time, and collect them in '
  'one table; `genrec sweep --help` explains it.',
}
_EXAMPLE = 'train quickstart --workdir=quickstart'


def split_overrides(argv: list[str]) -> tuple[list[str], list[str]]:
  """Takes `--config.a.b=V`, `--config.a.b V`, `--noconfig.flag` out."""
  rest, overrides = [], []
  words = collections.deque(argv)
  while words:
    word = words.popleft()
    name = word.lstrip('-')
    if word.startswith('-') and name.startswith('config.'):
      key = name.removeprefix('config.')
      # Without a value, when the next word is a flag, it is a switch.
      if '=' not in key and words and not words[0].startswith('--'):
        key += f'={words.popleft()}'
      overrides.append(key)
    elif word.startswith('-') and name.startswith('noconfig.'):
      overrides.append(name.removeprefix('noconfig.') + '=false')
    else:
      rest.append(word)
  return rest, overrides


def find_repeated(overrides: Sequence[str]) -> str:
  """What is wrong with keys that are given twice, in words; '' for nothing.

  Launchers that repeat a flag for each element of a tuple would else set it to
  the last one.

  >>> find_repeated(['eval.ks=1', 'eval.ks=10'])
  '--config.eval.ks is given twice, as 1 and as 10; a tuple is one word: \
--config.eval.ks="(1, 10)"'

  Args:
    overrides: 'a.b=value' each.
  """
  values: dict[str, list[str]] = {}
  for override in overrides:
    key, _, text = override.partition('=')
    values.setdefault(key, []).append(text)
  for key, texts in values.items():
    if len(texts) > 1:
      return (
        f'--config.{key} is given twice, as {texts[0]} and as {texts[1]}; a '
        f'tuple is one word: --config.{key}="({", ".join(texts)})"'
      )
  return ''


def hint_key(flag: str) -> str:
  """What somebody may have meant who left out `config.` of a key, or ''.

  >>> hint_key('data.path'), hint_key('workdri')
  ('; did you mean --config.data.path ?', '')

  Args:
    flag: its name, without dashes.
  """
  known = set()
  for make in (config_lib.retrieval, config_lib.ranking):
    known |= flatten(make().to_dict()).keys()
  if flag in known or flag.startswith(OPEN):
    near = [flag]
  elif '.' in flag:
    near = difflib.get_close_matches(flag, sorted(known), n=1, cutoff=0.7)
  else:  # a last name alone, as in --batch_size, which several keys may have
    near = sorted(key for key in known if key.endswith(f'.{flag}'))
  names = ' or '.join(f'--config.{key}' for key in near)
  return f'; did you mean {names} ?' if 0 < len(near) <= 3 else ''


def translate(words: Sequence[str]) -> dict[str, str | bool]:
  """The flags and keys that a command and the words behind it stand for.

  >>> translate(['predict', 'run', 'new.csv'])
  {'mode': 'predict', 'workdir': 'run', 'config.predict.input': 'new.csv'}

  Args:
    words: of the command line that are no flags.

  Raises:
    absl.app.UsageError: there is no such command, or it takes fewer words.
  """
  if not words:
    return {}
  name, *values = words
  if name not in COMMANDS:
    hint = hint_nearest(name, list_commands())
    raise app.UsageError(
      f'unexpected argument: {name} is no command{hint or "."} '
      f'The commands are {", ".join(list_commands())}'
    )
  command = COMMANDS[name]
  if len(values) > len(command.words):
    extra = values[len(command.words) :]
    hint = hint_key(extra[0].partition('=')[0].removeprefix('config.'))
    raise app.UsageError(
      f'unexpected arguments: {" ".join(extra)}; the command is: '
      f'{_program()} {name} {command.usage}{hint}'
    )
  return {**command.sets, **dict(zip(command.words, values, strict=False))}


def set_flags(values: Mapping[str, str | bool]) -> list[str]:
  """Sets flags as `translate` says, and returns the overrides among them.

  Raises:
    absl.app.UsageError: a flag says otherwise.
  """
  overrides = []
  for name, value in values.items():
    if name.startswith('config.'):
      overrides.append(f'{name.removeprefix("config.")}={value}')
    elif FLAGS[name].present and FLAGS[name].value != value:
      raise app.UsageError(
        f'the command says --{name}={value} already; leave '
        f'--{name}={FLAGS[name].value} out'
      )
    else:
      FLAGS[name].value = value
  if FLAGS.output:
    overrides.append(f'predict.output={FLAGS.output}')
  return overrides


def list_commands() -> list[str]:
  """The names of all commands."""
  return [*COMMANDS, *OTHERS, *LISTS]


def describe_usage() -> str:
  """What a command line without a word is answered with."""
  return (
    f'usage: {_program()} COMMAND ..., for example\n\n'
    f'  {_program()} {_EXAMPLE}\n\n'
    f'The commands are {", ".join(list_commands())}; '
    f'{_program()} --help explains them.'
  )


def describe_help() -> str:
  """A working example, the commands, the flags."""
  commands = [
    (f'{name} {command.usage}', command.help)
    for name, command in COMMANDS.items()
  ] + [*OTHERS.items(), *LISTS.items()]
  ours = [
    (f'--{name}{form}', FLAGS[name].help.rpartition('>: ')[2])
    for name, form in _OURS.items()
  ]
  ours[1:1] = [
    (
      '--config.KEY=VALUE',
      'Sets any key of the config, as in --config.train.batch_size=64; '
      '--config.loss.logq and --noconfig.loss.logq switch. '
      'docs/config_reference.md has them all.',
    )
  ]
  ours += [
    ('--verbosity=1', 'Show the tracebacks of errors.'),
    ('--version', 'Print the version and stop.'),
  ]
  return (
    'Trains recommendation models, evaluates them and predicts with them.\n\n'
    'This takes three minutes on two CPU cores and writes '
    'quickstart/report.html:\n\n'
    f'  {_program()} {_EXAMPLE}\n\n'
    f'Commands, as in {_program()} train quickstart ...:\n\n'
    f'{_indent_rows(commands)}\n\n'
    f'Flags; {_program()} --helpfull shows those of libraries, too:\n\n'
    f'{_indent_rows(ours)}'
  )


def describe_configs() -> str:
  """The table of `genrec configs`."""
  header = ('name', 'variants', 'what it is')
  return _format_table([header, *config_lib.describe_configs()])


def describe_models() -> str:
  """The table of `genrec models`."""
  from genrec_jax import models  # which needs JAX

  rows = [('name', 'kind', 'what it is')]
  for name, model in (
    models.MODELS | models.RANKERS | models.REQUEST_MODELS
  ).items():
    kinds = [kind for kind, known in MODELS_OF.items() if name in known]
    text = sys.modules[model.__module__].__doc__ or ''
    rows.append((name, ','.join(kinds), text.partition('\n')[0]))
  return _format_table(rows)


def _program() -> str:
  """What people have typed to come here."""
  name = pathlib.Path(sys.argv[0]).name
  return 'genrec' if name == 'genrec' else 'python -m genrec_jax.main'


def _indent_rows(rows: Sequence[tuple[str, str]]) -> str:
  """Names, and their explanations below them."""
  indent = ' ' * 6
  return '\n'.join(
    f'  {name}\n'
    + textwrap.fill(text, 79, initial_indent=indent, subsequent_indent=indent)
    for name, text in rows
  )


def _format_table(rows: Sequence[Sequence[str]]) -> str:
  titles, *cells = rows
  return '\n'.join(format_columns([f'<{title}' for title in titles], cells))
