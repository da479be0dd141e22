"""Sections that experiments of all kinds share.

The comment above a key, or at the end of its line, is its description in
docs/config_reference.md. If the default is None, it begins with the type of a
value.
"""

from ml_collections import ConfigDict

from genrec_jax.config import event_models, models, request_models
from genrec_jax.config.errors import ConfigError
from genrec_jax.config.loading import hint_nearest

# Model -> the class of its section, without the key `name`.
MODEL_CLASSES = {
  'hstu': models.HSTU,
  'sasrec': models.SASRec,
  'dcn': models.DCN,
  'deepfm': models.DeepFM,
  'dlrm': models.DLRM,
  'dnn': models.DNN,
  'finalmlp': models.FinalMLP,
  'fm': models.FM,
  'lr': models.LR,
  'tbsm': event_models.TBSM,
  'wukong': models.Wukong,
  'stu': request_models.STU,
}


def optimizer(**fields) -> ConfigDict:
  """How weights move; see docs/training.md."""
  return make_section(
    dict(
      # The optimizer of all dense parameters: 'adamw', 'adam', 'adagrad' or
      # 'sgd'.
      name='adamw',
      # The highest rate: after the warm-up, before the schedule lowers it.
      learning_rate=1e-3,
      b1=0.9,  # Decay of the mean of gradients.
      b2=0.98,  # Decay of the mean of squared gradients.
      eps=1e-8,  # Added to the root of that mean, or sum ('adagrad').
      # Decoupled decay of every dense parameter, in 'adamw' alone.
      weight_decay=0.0,
      # How all rates go on after the warm-up: 'constant', 'linear', 'cosine',
      # 'exponential' or 'inverse_sqrt'; see
      # docs/training.md#learning-rates-that-change.
      schedule='constant',
      # Steps in which all rates rise on a line from 0; the last of them has the
      # whole rate.
      warmup_steps=0,
      # The step at which the decay has ended, the warm-up included; 0 is the
      # end of the run.
      decay_steps=0,
      # The share of each rate that is left when the decay has ended.
      end_factor=0.0,
      # (regex of paths, {key: value}) pairs that give some parameters other
      # settings; the first match counts. See
      # docs/training.md#settings-for-some-parameters.
      groups=(),
      # The share of running averages of the dense parameters that a step keeps,
      # such as 0.999; evaluations, predictions and the best weights have the
      # averages in place of the parameters. 0 keeps none. Tables have none.
      average=0.0,
      # Upper bound of the norm of all dense gradients together; 0 clips
      # nothing.
      clip_norm=0.0,
      # All rates are multiplied by it after an evaluation in which
      # `train.monitor` was not better; 1 never lowers them.
      plateau_factor=1.0,
      plateau_min=1e-3,  # The least product of these factors.
      # The least rate that they leave of `optimizer.learning_rate`.
      plateau_min_rate=0.0,
      # How the rows of tables move; see docs/kernels.md#row-optimizers.
      rows=dict(
        # The optimizer of tables: 'dense' is that of everything else, and a row
        # optimizer, such as 'row_adagrad', updates only the rows that a step
        # reads. All keys below are for row optimizers.
        name='dense',
        # The number format of the rows: 'float32', 'bfloat16' or 'float16'.
        dtype='float32',
        # The highest rate, as in `optimizer.learning_rate`.
        learning_rate=0.05,
        # How that rate goes on; '' is as `optimizer.schedule`.
        schedule='',
        # Decay of the mean of gradients ('adam', 'lamb', their row-wise forms).
        b1=0.9,
        # Decay of the mean of squared gradients (the same optimizers).
        b2=0.999,
        momentum=0.9,  # The momentum of 'momentum' and 'lars'.
        eps=1e-8,  # Added to the root.
        weight_decay=0.0,  # The decay of the rows that a step touches.
        # str: How rows decay: 'l2' adds to the gradient, 'decoupled' does not.
        decay=None,
        # float: Rows that are longer after an update are scaled to this norm.
        max_norm=None,
        # Whether 16-bit rows, and those of `packed_as`, are rounded at random,
        # which has no bias.
        stochastic_rounding=True,
        # 'tbe_int8', 'tbe_int4' or 'tbe_int2': after an update, the rows of
        # float32 tables have only numbers that a serving table of these bits
        # holds. See docs/numerics.md.
        packed_as='',
      ),
    ),
    fields,
  )


def train(**fields) -> ConfigDict:
  """The training loop; see docs/training.md."""
  return make_section(
    dict(
      # Sequences (retrieval), examples (ranking) or requests in a step.
      batch_size=128,
      epochs=20,  # Passes over the data; used when `train.steps` is 0.
      # Steps of the whole run; 0 is counted from `train.epochs`, or, in ranking
      # on a `data.stream`, goes on to its end.
      steps=0,
      # A .safetensors file whose weights a fresh run begins with; '' begins
      # with new ones. See docs/weights.md.
      init_from='',
      # Whether each epoch has an order of its own; otherwise that of the data.
      shuffle=True,
      log_every=50,  # Steps between two lines of the log.
      eval_every=0,  # Steps between two evaluations; 0 evaluates each epoch.
      # Whether the weights are evaluated before the first step, too, as step 0,
      # which may be the best.
      eval_first=False,
      # Steps between two checkpoints; 0 saves after each epoch, and of a stream
      # with `checkpoint.at_part_ends` after each part alone.
      checkpoint_every=0,
      keep_checkpoints=2,  # How many of the newest checkpoints stay.
      # Evaluations without a better one after which a run stops; 0 never stops.
      patience=0,
      # The metric on the validation split that decides which step is best, or
      # several with weights, 'auc:1,logloss:-1'; see
      # docs/training.md#the-best-epoch-and-early-stopping.
      monitor='ndcg@10',
      # What it must gain at least for an evaluation to be better.
      min_delta=0.0,
      # Steps between two looks at the measurements for NaN and infinity.
      nan_every=50,
      # (first, last): these steps are traced to `WORKDIR/profile`.
      profile_steps=(),
    ),
    fields,
  )


def checkpoint() -> ConfigDict:
  """How the checkpoints of a run are written; see docs/checkpoints.md."""
  return ConfigDict(
    dict(
      # '' writes every array in each checkpoint. With 'full', 'one_shot',
      # 'consecutive' or 'intermittent', tables that have a row optimizer are
      # saved by rows, and between bases only the rows that have changed.
      policy='',
      # Bits of a saved weight: 2, 3, 4, 8, or 32 for the values as they are; 0
      # chooses 4 or 8 by `checkpoint.expected_restores`.
      bits=32,
      # The quantiser of fewer bits: 'symmetric', 'asymmetric', 'adaptive' or
      # 'kmeans'; see docs/row_quantisers.md.
      method='adaptive',
      # The number format of the row optimizer's state: 'float32' or 'float16'.
      row_state_dtype='float32',
      # How often the whole run is expected to be restored; after more restores,
      # 8 bits are used where fewer were. 0 has no such plan.
      expected_restores=0.0,
      # At the latest after so many saves, one holds all rows; 0 leaves it to
      # the policy.
      full_every=0,
      chunk_rows=65_536,  # Most rows in a file.
      # So many GB of rows a process copies before they are written, and a file
      # more; the training waits until the rest is copied, too. 0 copies all
      # rows at once, which takes as much of the host as they do.
      copy_gb=0.0,
      # Of the `train.keep_checkpoints` newest, those written within so many
      # hours stay; 0 keeps all of them.
      keep_hours=0.0,
      # Of these, as many as fit into so many GB stay; 0 keeps all of them.
      keep_gb=0.0,
      # File with a key that signs every checkpoint and publication, for readers
      # who must know who wrote them; see docs/publishing.md#signatures.
      sign_key_file='',
      # Whether a checkpoint is also written where a part of `data.stream` has
      # been trained to its end, and, where the run publishes, a publication.
      # See docs/training.md#a-growing-directory.
      at_part_ends=False,
      # What readers follow, in `WORKDIR/published`; see docs/publishing.md.
      publish=dict(
        every=0,  # Steps between two publications; 0 publishes nothing.
        bits=32,  # Bits of a published weight, as in `checkpoint.bits`.
        method='adaptive',  # Their quantiser, as in `checkpoint.method`.
        full_every=16,  # One of so many publications holds all rows.
        # So many of the newest publications stay, with all that they need.
        keep=1,
      ),
    )
  )


def compile_cache() -> ConfigDict:
  """Where compiled programs are kept; see docs/training.md#compilation."""
  return ConfigDict(
    dict(
      # The directory of compiled programs, which must be of nobody else: 'auto'
      # is `~/.cache/genrec_jax/programs`, '' keeps none. JAX's own setting
      # (JAX_COMPILATION_CACHE_DIR) goes before it.
      directory='auto',
      # When a run starts, the programs used least recently are removed until so
      # many GB are left.
      max_gb=1.0,
    )
  )


def numerics() -> ConfigDict:
  """The precision of arithmetic; see docs/training.md."""
  return ConfigDict(
    dict(
      # (regex of a weight's path, name of a product) pairs: how activations are
      # multiplied with the weights whose paths match, the first match counts.
      # Every weight needs one; '.*' stands for all others but small ones and
      # those of the first and the last layer, which have 'bfloat16'. () leaves
      # every product as it is. See docs/numerics.md.
      policy=(),
      # (regex of a table, format of packed rows) pairs: evaluations and
      # predictions read the rows of these tables as a service does that has
      # them in 8, 4 or 2 bits. A training refuses it. See docs/numerics.md.
      rows=(),
    )
  )


def parallel() -> ConfigDict:
  """How a run uses several devices; see docs/parallel.md."""
  return ConfigDict(
    dict(
      # Sets of hosts that hold a copy of every table each.
      replicas=1,
      hosts=1,  # Hosts of a replica.
      devices=1,  # Devices of a host; 0 is all there are.
      # A plan file, which says where the rows of each table lie.
      plan='',
      # Without a plan, the sharding scheme of all tables that name none in
      # `tables`; '' is 'row_wise', 'auto' asks the planner. It is an error to
      # set it while no table has a row optimizer.
      scheme='',
      # Multi-hot features travel as 'rows', as 'sums' that the holders of the
      # rows make, or ('auto') as whichever sends fewer bytes.
      pool='auto',
      # Hardware whose memory the plan must fit; see docs/planner.md.
      topology='',
      # Memory of each device, where it is not what the topology says; 0 keeps
      # that.
      memory_gb=0.0,
      # How rows travel between devices; see docs/parallel.md#what-travels.
      exchange=dict(
        # The collective that moves rows: 'all_to_all', 'gather' or 'ragged'.
        kind='all_to_all',
        # Room for the rows of one peer, as a multiple of an even share.
        capacity=2.0,
        # Where the room is too small, what finds none travels in further
        # 'rounds', or the run stops ('raise').
        overflow='rounds',
        # The number format of rows on the wire: 'float32', 'float16',
        # 'bfloat16', 'fp8', 'int8', or one of FBGEMM's or of MX; see
        # docs/number_formats.md.
        forward='float32',
        backward='float32',  # The number format of their gradients.
        # The number format of sums within a host, on their way to towers; ''
        # is `forward`, which is then for what towers make.
        near_forward='',
        near_backward='',  # That of their gradients; '' is `backward`.
        # A power of two that gradients are multiplied by while they travel in
        # float16, so that small ones do not become zero.
        gradient_scale=4096.0,
      ),
      sync_every=1,  # Steps between two averages over replicas.
      # How all other parameters are held: 'ddp', 'grad_op', 'fsdp' or 'hybrid'.
      dense='ddp',
      # (regex of a parameter's path, dimension) pairs: which dimension is cut;
      # None cuts nothing, 'largest' the longest one.
      rules=(('.*', 'largest'),),
      gather_dtype='float32',  # The number format of gathered parameters.
      # The number format of gradients while they are summed.
      reduce_dtype='float32',
      bucket_mb=25.0,  # Megabytes of one all-reduce.
      # Whether parameters are gathered once a step instead of once a pass.
      keep_gathered=False,
      # Whether the optimizer's state rests in the memory of the host.
      offload=False,
      # How many microbatches the batch of a device is processed in.
      microbatches=1,
      # 'exact' routes the ids of a batch ahead; 'stale' fetches its rows ahead,
      # too, one update behind.
      pipeline='none',
      # What a repeated run has the same bits on: 'per_mesh' the same mesh,
      # 'mesh_invariant' any number of devices.
      determinism='per_mesh',
      # Summands of a batch that 'mesh_invariant' adds up one by one.
      reduction_blocks=8,
      # Several processes: seconds without a sign of life of one, after which
      # the others end.
      heartbeat_s=30.0,
      # Several processes: seconds that one waits for the others at the start.
      join_s=300.0,
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


def make_model_section(name: str, fields: dict) -> ConfigDict:
  """The section of a model with `fields` set, which its class must have.

  Args:
    name: the value of the key `name`.
    fields: the values that differ from the defaults.
  """
  return make_section({'name': name, **vars(MODEL_CLASSES[name]())}, fields)
