"""Configurations: defaults, loading, command-line overrides, saving.

A config file holds one experiment: `get_config(arg)` returns a `ConfigDict`
made from `retrieval()` and `hstu()` or `sasrec()` below, which name every key
there is. `arg` is what stands behind the colon of `--config=FILE:arg`; every
config of this project understands `smoke`, a run of seconds on two CPU cores.
"""

import ast
import difflib
import importlib.util
import json
import pathlib
from collections.abc import Sequence

from ml_collections import ConfigDict


class ConfigError(ValueError):
  """A configuration that cannot be used; the message says which key and why."""


def retrieval() -> ConfigDict:
  """Every key of a retrieval experiment, with its default."""
  return ConfigDict(
    {
      'task': 'retrieval',
      'seed': 0,
      'data': {
        # A key of `genrec_jax.data.datasets.DATASETS`; see docs/data.md.
        'name': 'synthetic',
        'path': '',  # file or directory of the raw data
        'cache': '',  # where converted columns live; '' is <workdir>/data
        'columns': {
          'user': 'user',
          'item': 'item',
          'time': 'time',
          'rating': '',
        },
        'min_rating': None,  # keep events rated at least this
        'min_item_events': 0,
        'min_user_events': 0,
        'ids': 'auto',  # or 'int', 'str'
        'time_unit': 's',
        'delimiter': ',',
        'item_vocab': '',  # a saved vocabulary to apply
        'unknown_items': 'error',  # or 'skip'
        'titles': '',  # CSV with columns item,title, for reports
        # Train on part files as they appear; the data above gives vocabulary
        # and evaluation. Needs train.steps, eval_every, checkpoint_every.
        'stream': {
          'directory': '',
          'pattern': '*.csv',
          'poll_s': 5.0,
          'idle_s': None,  # end after so many seconds without a new part
        },
        # 'dense', or a name of embedding.row_optimizers: touched rows only
        'table_update': 'dense',
        'table_dtype': 'float32',  # 'bfloat16', 'float16' of such rows
        'init_std': 0.02,
        'synthetic': {
          'records': 20_000,
          'length': 128,
          'items': 4_000,
          'categories': 100,
          'per_record': 5,
          'seed': 0,
        },
      },
      'split': {
        'name': 'leave_last_out',  # or 'global_time', 'stream'
        'holdout': 2,  # 2: validation and test item; 1: test item only
        'windows': 'latest',  # or 'all': older tokens too
        'valid_from': 0.8,  # global_time: timestamp, or share of the events
        'test_from': 0.9,
        'target': 'last',  # global_time: 'last', 'first' or 'all'
        'valid_fraction': 0.05,  # stream
        'test_fraction': 0.1,  # stream
      },
      'model': hstu(),
      'loss': {
        'name': 'sampled_softmax',  # 'full_softmax', 'bce', 'gbce'
        'sampler': 'uniform',  # 'shared', 'in_batch', 'in_batch_unique'
        'negatives': 128,
        'temperature': 0.05,
        'l2_normalize': True,
        'logq': False,
        'mask_collisions': True,
        'gbce_t': 0.75,
        'chunk': None,  # positions at a time; None: what suits the machine
      },
      'optimizer': {
        'name': 'adamw',  # 'adam', 'sgd'
        'learning_rate': 1e-3,
        'b1': 0.9,
        'b2': 0.98,
        'eps': 1e-8,
        'weight_decay': 0.0,
        'warmup_steps': 0,
        'clip_norm': 0.0,  # 0: no clipping
        'row_learning_rate': 0.05,  # tables with data.table_update 'row_*'
        'rows': {  # options of their optimizer, see docs/kernels.md
          'eps': 1e-8,
          'weight_decay': 0.0,
          'decay': None,  # 'l2' or 'decoupled'
          'max_norm': None,
          'stochastic_rounding': True,  # of 16-bit rows
        },
      },
      'parallel': parallel(),
      'train': {
        'batch_size': 128,
        'epochs': 20,  # used when steps is 0
        'steps': 0,
        'shuffle': True,
        'log_every': 50,  # steps
        'eval_every': 0,  # steps; 0: each epoch
        'checkpoint_every': 0,  # steps; 0: each epoch
        'keep_checkpoints': 2,
        'patience': 0,  # evaluations without a better one; 0: never stop early
        'monitor': 'ndcg@10',  # measured on the validation part
        'nan_every': 50,  # steps between looks at the measurements
        'profile_steps': (),  # (first, last): trace these to <workdir>/profile
      },
      'eval': {
        'parts': ('valid', 'test'),
        'ks': (1, 10, 50, 100, 200),
        'batch_size': 256,
        'batch_tokens': 16384,
        'item_chunk': 16384,
        'filter_seen': 'window',  # 'history' or 'none'
        'miss_rank': 0,  # HSTU protocol: 2501
      },
      'predict': {
        'input': '',  # file or directory of events; '': the training users
        'format': '',  # as data.name; '': by suffix, .csv, .tsv or .parquet
        # '' is what the data section says.
        'columns': {'user': '', 'item': '', 'time': '', 'rating': ''},
        'ids': '',
        'time_unit': '',
        'delimiter': '',
        'request_time': None,  # seconds since 1970; None: of the last event
        # .csv, .parquet or .jsonl; '' is <workdir>/predictions.csv
        'output': '',
        'top_k': 10,
        'checkpoint': 'best',  # or 'latest'
      },
      'report': {'users': 5, 'history': 12, 'recommendations': 10},
    }
  )


def parallel() -> ConfigDict:
  """How a run is spread over devices; see docs/parallel.md."""
  return ConfigDict(
    dict(
      # A mesh of replicas x hosts x devices; 0 devices: all there are.
      replicas=1,
      hosts=1,
      devices=1,
      # Tables that are updated by rows: a plan file, or one scheme for all.
      plan='',
      scheme='row_wise',  # or another name in embedding.plan.SCHEMES
      topology='',  # hardware the plan must fit, see docs/planner.md
      memory_gb=0.0,  # of each device, if not what the topology says
      exchange=dict(
        kind='all_to_all',  # 'gather', 'ragged'
        capacity=2.0,  # room for the rows of one peer, in even shares
        overflow='gather',  # or 'raise'
        forward='float32',  # 'float16', 'bfloat16', 'fp8', 'int8'
        backward='float32',
      ),
      sync_every=1,  # steps between averages over replicas
      # Everything else: 'ddp', 'grad_op', 'fsdp', 'hybrid'.
      dense='ddp',
      rules=(('.*', 'largest'),),  # regex -> dimension that is cut, or None
      gather_dtype='float32',
      reduce_dtype='float32',
      bucket_mb=25.0,
      keep_gathered=False,
      offload=False,  # the optimizer's state to the host's memory
      accumulate=1,  # microbatches of a batch
      pipeline='none',  # 'exact': route a batch ahead; 'stale': fetch it too
      determinism='run',  # 'order': the same bits on any number of devices
      blocks=8,  # parts of a batch that 'order' adds up one by one
    )
  )


def hstu(**fields) -> ConfigDict:
  """The published HSTU retrieval layer; see `models.hstu.Config`."""
  return _section(
    dict(
      name='hstu',
      dim=50,
      blocks=2,
      heads=1,
      dqk=50,
      dv=50,
      max_len=200,
      extra_positions=11,
      dropout=0.2,
      embedding_dropout=0.2,
      attention='silu',
      silu_on='all',
      concat='none',
      uvqk_bias=False,
      out_bias=True,
      ln_affine=False,
      alpha=None,
      normaliser=None,
      position_bias=True,
      time_bias=True,
      position_embedding=True,
      dtype='float32',
      remat=False,
      implementation=None,
    ),
    fields,
  )


def sasrec(**fields) -> ConfigDict:
  """The HSTU paper's SASRec baseline; see `models.sasrec.Config`."""
  return _section(
    dict(
      name='sasrec',
      dim=50,
      blocks=2,
      heads=1,
      ffn_dim=50,
      max_len=200,
      extra_positions=11,
      dropout=0.2,
      embedding_dropout=0.2,
      norm_eps=1e-8,
      norm_affine=False,
      final_norm=False,
      scale_rows=True,
      positions_from='oldest',
      position_std=None,
      project=True,
      activation='relu',
      init='xavier_normal',
      dtype='float32',
      remat=False,
      implementation=None,
    ),
    fields,
  )


def smoke(config: ConfigDict) -> ConfigDict:
  """Shrinks an experiment to seconds on two CPU cores, on generated data."""
  config.data.name = 'synthetic'
  config.data.path = ''
  config.data.synthetic = ConfigDict(
    dict(records=300, length=20, items=200, categories=10, per_record=3, seed=0)
  )
  config.data.stream.directory = ''
  config.split.name = 'stream'
  config.split.windows = 'latest'
  config.model.dim = 16
  config.model.max_len = 20
  config.model.blocks = 1
  for key in ('dqk', 'dv', 'ffn_dim'):
    if key in config.model:
      config.model[key] = 16
  if 'time_bias' in config.model:
    config.model.time_bias = False
  config.loss.negatives = 16
  config.train.batch_size = 32
  config.train.steps = 16
  config.train.patience = 0
  config.train.log_every = 4
  config.train.eval_every = 8
  config.train.checkpoint_every = 8
  config.train.nan_every = 4
  config.eval.ks = (1, 10)
  config.eval.batch_tokens = 1024
  config.report.users = 2
  return config


def variants(arg: str | None, known: Sequence[str] = ('smoke',)) -> set[str]:
  """The variants behind `--config=FILE:`, separated by commas."""
  names = {name for name in (arg or '').split(',') if name}
  for name in names:
    if name not in known:
      raise ConfigError(
        f'unknown variant {name!r}; this config knows {", ".join(known)}'
      )
  return names


def load(path: str, overrides: Sequence[str] = ()) -> ConfigDict:
  """Loads `FILE` or `FILE:variant` and applies `a.b=value` overrides."""
  name, _, arg = path.partition(':')
  file = pathlib.Path(name)
  if not file.is_file():
    nearby = sorted(str(p) for p in file.parent.glob('*.py'))
    hint = difflib.get_close_matches(str(file), nearby, n=1, cutoff=0.0)
    raise ConfigError(
      f'no config file {name!r}'
      + (f'; did you mean {hint[0]!r}?' if hint else '')
    )
  spec = importlib.util.spec_from_file_location(f'config_{file.stem}', file)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, 'get_config'):
    raise ConfigError(f'{name} has no get_config(arg): is it a config file?')
  config = module.get_config(arg or None)
  for override in overrides:
    apply(config, override)
  return config.lock()


def apply(config: ConfigDict, override: str) -> None:
  """Sets one key from `a.b=value`; the value takes the default's type.

  `a.b` alone switches a key that is true or false on.
  """
  key, equals, text = override.partition('=')
  *parents, last = key.split('.')
  section = config
  for depth, name in enumerate([*parents, last]):
    if not isinstance(section, ConfigDict) or name not in section:
      raise ConfigError(_unknown(config, key, depth))
    if depth < len(parents):
      section = section[name]
  if isinstance(section[last], ConfigDict):
    raise ConfigError(
      f'config.{key} is a section; set one of its keys: '
      + ', '.join(f'{key}.{k}' for k in section[last])
    )
  if not equals and not isinstance(section[last], bool):
    raise ConfigError(f'--config.{key} needs a value: --config.{key}=...')
  value = _parse(key, text if equals else 'true', section[last])
  with section.ignore_type(), section.unlocked():
    section[last] = value


def save(config: ConfigDict, path) -> None:
  """Writes the config as JSON; `read` is its inverse."""
  pathlib.Path(path).write_text(to_json(config) + '\n')


def to_json(config: ConfigDict) -> str:
  return json.dumps(config.to_dict(), indent=2, default=list)


def read(path) -> dict:
  """A saved config as a plain dict."""
  return json.loads(pathlib.Path(path).read_text())


def difference(saved: dict, config: ConfigDict, ignored=()) -> list[str]:
  """Keys in which a saved config and `config` differ, as readable lines."""
  now = json.loads(to_json(config))
  old, new = _flat(saved), _flat(now)
  lines = []
  for key in sorted(set(old) | set(new)):
    if key.split('.')[0] in ignored or key in ignored:
      continue
    if old.get(key) != new.get(key):
      lines.append(f'{key}: saved {old.get(key)!r}, now {new.get(key)!r}')
  return lines


def _section(defaults: dict, fields: dict) -> ConfigDict:
  for key in fields:
    if key not in defaults:
      raise ConfigError(
        f'{defaults["name"]} has no field {key!r}{_nearest(key, defaults)}'
      )
  return ConfigDict({**defaults, **fields})


def _flat(tree: dict, prefix: str = '') -> dict:
  out = {}
  for key, value in tree.items():
    if isinstance(value, dict):
      out |= _flat(value, f'{prefix}{key}.')
    else:
      out[prefix + key] = value
  return out


def _nearest(key: str, known) -> str:
  hint = difflib.get_close_matches(key, list(known), n=1, cutoff=0.4)
  return f'; did you mean {hint[0]!r}?' if hint else ''


def _unknown(config: ConfigDict, key: str, depth: int) -> str:
  every = list(_flat(config.to_dict()))
  last = key.split('.')[-1]
  same_name = [k for k in every if k.split('.')[-1] == last]
  hint = difflib.get_close_matches(key, same_name or every, n=1, cutoff=0.5)
  text = f'unknown config key {key!r}'
  if hint:
    return f'{text}; did you mean --config.{hint[0]} ?'
  return f'{text}; sections are {", ".join(config)}'


def _parse(key: str, text: str, default):
  """`text` in the type of `default`."""
  try:
    if isinstance(default, bool):
      return {'true': True, '1': True, 'false': False, '0': False}[text.lower()]
    if isinstance(default, int):
      return int(text.replace('_', ''))
    if isinstance(default, float):
      return float(text)
    if isinstance(default, (tuple, list)):
      return _parse_tuple(text, default)
    if default is None:
      if text.lower() in ('none', ''):
        return None
      try:
        return ast.literal_eval(text)
      except (ValueError, SyntaxError):
        return text
    # In small letters it is a word: --config.eval.filter_seen=none
    return None if text == 'None' else text
  except (ValueError, KeyError, SyntaxError):
    raise ConfigError(
      f'--config.{key}={text}: expected {type(default).__name__}, as in '
      f'{default!r}'
    ) from None


def _parse_tuple(text: str, default) -> tuple:
  """`(1, 10)`, `1,10`, `10` or words: `valid,test`."""
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError):
    value = [word.strip() for word in text.split(',')]
  value = tuple(value) if isinstance(value, (tuple, list)) else (value,)
  if len({type(v) for v in (*default, *value)}) > 1:
    raise ValueError('of mixed types')
  return value
