"""Sections that experiments of all kinds share."""

from ml_collections import ConfigDict

from genrec_jax.config.loading import ConfigError, hint_nearest


def optimizer(**fields) -> ConfigDict:
  """How weights move; see docs/training.md."""
  return make_section(
    dict(
      name='adamw',  # 'adam', 'sgd'
      learning_rate=1e-3,
      b1=0.9,
      b2=0.98,
      eps=1e-8,
      weight_decay=0.0,
      # How all rates go on after the warm-up: 'linear', 'cosine',
      # 'inverse_sqrt'.
      schedule='constant',
      warmup_steps=0,
      decay_steps=0,  # from the start to the end of the decay; 0: of the run
      end_factor=0.0,  # of the rates, when it has ended
      # (regex of paths, {key: value}) pairs: other settings for some
      # parameters; the first match counts.
      groups=(),
      clip_norm=0.0,  # 0: no clipping
      # All rates times this after an evaluation without a better result.
      plateau_factor=1.0,
      plateau_min=1e-3,  # least product of these factors
      row_learning_rate=0.05,  # tables with data.table_update 'row_*'
      row_schedule='',  # of that rate; '': as `schedule`
      rows=dict(  # options of their optimizer, see docs/kernels.md
        b1=0.9,
        b2=0.999,
        momentum=0.9,
        eps=1e-8,
        weight_decay=0.0,
        decay=None,  # 'l2' or 'decoupled'
        max_norm=None,
        stochastic_rounding=True,  # of 16-bit rows
      ),
    ),
    fields,
  )


def train(**fields) -> ConfigDict:
  """The training loop; see docs/training.md."""
  return make_section(
    dict(
      batch_size=128,
      epochs=20,  # used when steps is 0
      steps=0,
      init_from='',  # a .safetensors file whose weights a fresh run begins with
      shuffle=True,
      log_every=50,  # steps
      eval_every=0,  # steps; 0: each epoch
      checkpoint_every=0,  # steps; 0: each epoch
      keep_checkpoints=2,
      patience=0,  # evaluations without a better one; 0: never stop early
      monitor='ndcg@10',  # measured on the validation part
      nan_every=50,  # steps between looks at the measurements
      profile_steps=(),  # (first, last): trace these to <workdir>/profile
    ),
    fields,
  )


def checkpoint() -> ConfigDict:
  """How the checkpoints of a run are written; see docs/checkpoints.md."""
  return ConfigDict(
    dict(
      # '': everything, each time. Or 'full', 'one_shot', 'consecutive',
      # 'intermittent': tables that are updated by rows are saved by rows, and
      # between bases only what has changed.
      policy='',
      bits=32,  # of a weight: 2, 3, 4, 8, 32; 0: by expected_restores
      method='adaptive',  # 'symmetric', 'asymmetric', 'kmeans'
      slots='float32',  # of the row optimizer; 'float16'
      expected_restores=0.0,  # of the whole run; after more, 8 bits
      full_every=0,  # saves, at the latest; 0: by the policy alone
      chunk_rows=65_536,  # of a file
      keep_hours=0.0,  # what is older goes; 0: train.keep_checkpoints alone
      keep_gb=0.0,  # what no longer fits goes
      # What readers follow (genrec_jax.checkpoint.follow), in WORKDIR/published
      publish=dict(
        every=0,  # steps; 0: nothing is published
        bits=32,
        method='adaptive',
        full_every=16,
        keep=1,
      ),
    )
  )


def numerics() -> ConfigDict:
  """The precision of arithmetic; see docs/training.md."""
  return ConfigDict(
    dict(
      # (regex of a weight's path, name in numerics.products.PRODUCTS): how
      # activations are multiplied with it; 'default' where none matches.
      products=(),
    )
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
      # 'auto': by the planner; or another name in embedding.scheme.SCHEMES
      scheme='',  # '': 'row_wise'
      # Multi-hot features travel as 'rows', as 'sums' that the holders of the
      # rows make, or ('auto') as whichever sends fewer bytes.
      pool='auto',
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


def make_section(defaults: dict, fields: dict) -> ConfigDict:
  """`defaults` with `fields` set, which must be among them."""
  for key in fields:
    if key not in defaults:
      what = defaults.get('name', 'this section')
      raise ConfigError(
        f'{what} has no field {key!r}{hint_nearest(key, defaults)}'
      )
  return ConfigDict({**defaults, **fields})
