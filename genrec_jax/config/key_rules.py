"""Key -> what its value may be, for every key there is.

A rule knows one value, and is asked before any data are read. What several keys
must be together is said by the classes of models.py and losses.py and by
`train.settings_checks`.
"""

import dataclasses

from genrec_jax.config.value_rules import (
  Rule,
  maybe,
  number,
  some,
  whole,
  words,
)

TEXT, NAME = Rule('text'), Rule('some text')
SWITCH, PAIRS = Rule('True or False'), Rule('pairs')
ZERO_OR_MORE, POSITIVE = number(least=0), number(above=0)
SHARE = number(least=0, most=1)
DECAY = number(least=0, below=1)  # and rates of dropout, which leave something
SEED = whole(0, 2**63 - 1)
WIDTH = whole(1, 2**20)
WIDTHS = some(WIDTH)
NUMBER_FORMATS = ('float32', 'float16', 'bfloat16')
ON_THE_WIRE = words(*NUMBER_FORMATS, 'fp8', 'int8', grows=True)
BITS = words(0, 2, 3, 4, 8, 32)
METHOD = words('symmetric', 'asymmetric', 'adaptive', 'kmeans', grows=True)
SCHEDULES = ('constant', 'linear', 'cosine', 'inverse_sqrt')
CHECKPOINT = words('best', 'latest')
UNITS, ID_TYPES = ('s', 'ms', 'us', 'ns'), ('auto', 'int', 'str')

# Key -> its rule, in experiments of every kind.
SHARED = {
  'task': NAME,
  'seed': SEED,
  'extensions': TEXT,
  'tables': PAIRS,
  'data.init_std': ZERO_OR_MORE,
  'data.token_capacities': whole(),
  'data.header': words('auto', 'yes', 'no', 'true', 'false'),
  'data.decimal': words('.', ','),
  'eval.batch_size': whole(1),
  'optimizer.name': words('adamw', 'adam', 'sgd'),
  'optimizer.learning_rate': ZERO_OR_MORE,
  'optimizer.b1': DECAY,
  'optimizer.b2': DECAY,
  'optimizer.eps': ZERO_OR_MORE,
  'optimizer.weight_decay': ZERO_OR_MORE,
  'optimizer.schedule': words(*SCHEDULES),
  'optimizer.warmup_steps': whole(),
  'optimizer.decay_steps': whole(),
  'optimizer.end_factor': SHARE,
  'optimizer.groups': PAIRS,
  'optimizer.clip_norm': ZERO_OR_MORE,
  'optimizer.plateau_factor': SHARE,
  'optimizer.plateau_min': SHARE,
  'optimizer.plateau_min_rate': ZERO_OR_MORE,
  'optimizer.rows.name': words(
    'dense', 'sgd', 'row_sgd', 'momentum', 'lars', 'row_adagrad', 'adagrad',
    'row_adam', 'adam', 'row_lamb', 'lamb', grows=True,
  ),
  'optimizer.rows.dtype': words(*NUMBER_FORMATS, grows=True),
  'optimizer.rows.learning_rate': ZERO_OR_MORE,
  'optimizer.rows.schedule': words('', *SCHEDULES),
  'optimizer.rows.b1': DECAY,
  'optimizer.rows.b2': DECAY,
  'optimizer.rows.momentum': DECAY,
  'optimizer.rows.eps': ZERO_OR_MORE,
  'optimizer.rows.weight_decay': ZERO_OR_MORE,
  'optimizer.rows.decay': maybe(words('l2', 'decoupled')),
  'optimizer.rows.max_norm': maybe(POSITIVE),
  'optimizer.rows.stochastic_rounding': SWITCH,
  'train.batch_size': whole(1),
  'train.epochs': whole(),
  'train.steps': whole(),
  'train.init_from': TEXT,
  'train.shuffle': SWITCH,
  'train.log_every': whole(1),
  'train.eval_every': whole(),
  'train.eval_first': SWITCH,
  'train.checkpoint_every': whole(),
  'train.keep_checkpoints': whole(1),
  'train.patience': whole(),
  'train.monitor': NAME,
  'train.min_delta': ZERO_OR_MORE,
  'train.nan_every': whole(1),
  'train.profile_steps': some(whole()),
  'checkpoint.policy': words(
    '', 'full', 'one_shot', 'consecutive', 'intermittent'
  ),
  'checkpoint.bits': BITS,
  'checkpoint.method': METHOD,
  'checkpoint.row_state_dtype': words('float32', 'float16'),
  'checkpoint.expected_restores': ZERO_OR_MORE,
  'checkpoint.full_every': whole(),
  'checkpoint.chunk_rows': whole(1),
  'checkpoint.keep_hours': ZERO_OR_MORE,
  'checkpoint.keep_gb': ZERO_OR_MORE,
  'checkpoint.sign_key_file': TEXT,
  'checkpoint.publish.every': whole(),
  'checkpoint.publish.bits': BITS,
  'checkpoint.publish.method': METHOD,
  'checkpoint.publish.full_every': whole(1),
  'checkpoint.publish.keep': whole(1),
  'compile_cache.directory': TEXT,
  'compile_cache.max_gb': ZERO_OR_MORE,
  'numerics.products': PAIRS,
  'parallel.replicas': whole(1, 2**16),
  'parallel.hosts': whole(1, 2**16),
  'parallel.devices': whole(0, 2**16),
  'parallel.plan': TEXT,
  'parallel.scheme': TEXT,
  'parallel.pool': words('auto', 'rows', 'sums'),
  'parallel.topology': TEXT,
  'parallel.memory_gb': ZERO_OR_MORE,
  'parallel.exchange.kind': words('all_to_all', 'gather', 'ragged'),
  'parallel.exchange.capacity': POSITIVE,
  'parallel.exchange.overflow': words('gather', 'raise'),
  'parallel.exchange.forward': ON_THE_WIRE,
  'parallel.exchange.backward': ON_THE_WIRE,
  'parallel.exchange.gradient_scale': POSITIVE,
  'parallel.sync_every': whole(1),
  'parallel.dense': words('ddp', 'grad_op', 'fsdp', 'hybrid'),
  'parallel.rules': PAIRS,
  'parallel.gather_dtype': words(*NUMBER_FORMATS),
  'parallel.reduce_dtype': words('float32', 'bfloat16'),
  'parallel.bucket_mb': POSITIVE,
  'parallel.keep_gathered': SWITCH,
  'parallel.offload': SWITCH,
  'parallel.microbatches': whole(1),
  'parallel.pipeline': words('none', 'exact', 'stale'),
  'parallel.determinism': words('per_mesh', 'mesh_invariant'),
  'parallel.reduction_blocks': whole(1),
  'parallel.heartbeat_s': POSITIVE,
  'parallel.join_s': POSITIVE,
}  # fmt: skip
_PREDICT = {
  'predict.input': TEXT,
  'predict.format': TEXT,
  'predict.output': TEXT,
  'predict.escape_formulas': SWITCH,
  'predict.checkpoint': CHECKPOINT,
}
RETRIEVAL = {
  **_PREDICT,
  'data.name': words(
    'ml100k', 'ml1m', 'ml20m', 'ml_latest', 'sasrec_text', 'csv', 'parquet',
    'histories', 'synthetic',
  ),
  'data.path': TEXT,
  'data.cache': TEXT,
  'data.columns.user': NAME,
  'data.columns.item': NAME,
  'data.columns.time': TEXT,
  'data.columns.rating': TEXT,
  'data.min_rating': maybe(number()),
  'data.min_item_events': whole(),
  'data.min_user_events': whole(),
  'data.duplicates': words('keep', 'drop'),
  'data.id_type': words(*ID_TYPES),
  'data.time_unit': words(*UNITS),
  'data.delimiter': TEXT,
  'data.item_vocab': TEXT,
  'data.unknown_items': words('error', 'skip'),
  'data.titles': TEXT,
  'data.stream.directory': TEXT,
  'data.stream.pattern': NAME,
  'data.stream.poll_s': POSITIVE,
  'data.stream.idle_s': maybe(ZERO_OR_MORE),
  'data.synthetic.records': whole(1),
  'data.synthetic.length': whole(2),
  'data.synthetic.items': whole(2),
  'data.synthetic.categories': whole(1),
  'data.synthetic.per_record': whole(1),
  'data.synthetic.seed': SEED,
  'split.name': words('leave_last_out', 'global_time', 'stream'),
  'split.holdout': words(1, 2),
  'split.windows': words('latest', 'all'),
  'split.valid_from': maybe(ZERO_OR_MORE),
  'split.test_from': ZERO_OR_MORE,
  'split.target': words('last', 'first', 'all'),
  'split.valid_fraction': DECAY,
  'split.test_fraction': DECAY,
  'loss.name': words('sampled_softmax', 'full_softmax', 'bce', 'gbce'),
  'loss.sampler': words('uniform', 'shared', 'in_batch', 'in_batch_unique'),
  'loss.negatives': whole(1),
  'loss.temperature': POSITIVE,
  'loss.l2_normalize': SWITCH,
  'loss.logq': SWITCH,
  'loss.mask_collisions': SWITCH,
  'loss.gbce_t': SHARE,
  'loss.chunk': maybe(whole(1)),
  'eval.splits': some(words('train', 'valid', 'test')),
  'eval.ks': some(whole(1), filled=True),
  'eval.batch_tokens': whole(1),
  'eval.item_chunk': whole(1),
  'eval.filter_seen': words('window', 'history', 'none'),
  'eval.miss_rank': whole(),
  'eval.request_time': words('target', 'last_event'),
  'predict.columns.user': TEXT,
  'predict.columns.item': TEXT,
  'predict.columns.time': TEXT,
  'predict.columns.rating': TEXT,
  'predict.id_type': words('', *ID_TYPES),
  'predict.time_unit': words('', *UNITS),
  'predict.delimiter': TEXT,
  'predict.header': words('', 'auto', 'yes', 'no', 'true', 'false'),
  'predict.request_time': maybe(ZERO_OR_MORE),
  'predict.top_k': whole(1),
  'report.users': whole(),
  'report.history': whole(1),
  'report.recommendations': whole(1),
}  # fmt: skip
RANKING = {
  **_PREDICT,
  'data.name': words(
    'clicks', 'csv', 'parquet', 'libsvm', 'criteo', 'frappe', 'prepared'
  ),
  'data.path': TEXT,
  'data.cache': TEXT,
  'data.files.train': TEXT,
  'data.files.valid': TEXT,
  'data.files.test': TEXT,
  'data.names_give_splits': SWITCH,
  'data.split.by': words('order', 'time', 'random', 'group'),
  'data.split.column': TEXT,
  'data.split.valid_fraction': DECAY,
  'data.split.test_fraction': DECAY,
  'data.split.seed': SEED,
  'data.labels': some(NAME, filled=True),
  'data.group': TEXT,
  'data.time': TEXT,
  'data.weight': TEXT,
  'data.negatives_kept': number(above=0, most=1),
  'data.example_id': TEXT,
  'data.min_count': whole(1),
  'data.oov': words('row', 'hash', 'error'),
  'data.hash_rows': whole(),
  'data.numeric': words('as_is', 'log', 'ln2', 'standardize'),
  'data.pairs': words('by_index', 'by_place'),
  'data.clip': ZERO_OR_MORE,
  'data.train_unseen': DECAY,
  'data.delimiter': TEXT,
  'data.token_capacities': whole(0, 1),
  'data.block_rows': whole(1),
  'data.shuffle_rows': whole(1),
  'data.clicks.rows': whole(1),
  'data.clicks.fields': whole(1),
  'data.clicks.values': whole(1),
  'data.clicks.numbers': whole(),
  'predict.keep': some(NAME),
  'data.clicks.orders': some(whole(1)),
  'data.clicks.terms': whole(),
  'data.clicks.noise': ZERO_OR_MORE,
  'data.clicks.traits': whole(1),
  'data.clicks.signal': ZERO_OR_MORE,
  'data.clicks.zipf': ZERO_OR_MORE,
  'data.clicks.seed': SEED,
  'loss.task_weights': some(ZERO_OR_MORE),
  'loss.table_l2': ZERO_OR_MORE,
  'loss.net_l2': ZERO_OR_MORE,
  'eval.splits': some(words('train', 'valid', 'test')),
  'eval.progressive': words('none', 'window', 'lifetime'),
  'report.bins': whole(1),
  'report.importance_rows': whole(),
  'report.importance_repeats': whole(1),
}
REQUESTS = {
  **_PREDICT,
  'predict.columns.user': NAME,
  'predict.columns.item': NAME,
  'predict.columns.time': TEXT,
}  # fmt: skip
# Field of a model -> its rule; the words that a field may be are in models.py.
MODEL = {
  'name': NAME,
  'dim': WIDTH,
  'blocks': whole(1, 2**16),
  'heads': whole(1, 2**16),
  'dqk': WIDTH,
  'dv': WIDTH,
  'ffn_dim': WIDTH,
  'max_len': whole(1, 2**24),
  'extra_positions': whole(0, 2**24),
  'dropout': DECAY,
  'dropout1': DECAY,
  'dropout2': DECAY,
  'embedding_dropout': DECAY,
  'top_dropout': DECAY,
  'attention': NAME,
  'silu_on': NAME,
  'concat': NAME,
  'uvqk_bias': SWITCH,
  'out_bias': SWITCH,
  'ln_affine': SWITCH,
  'alpha': maybe(number()),
  'normaliser': maybe(POSITIVE),
  'position_bias': SWITCH,
  'time_bias': SWITCH,
  'position_embedding': SWITCH,
  'dtype': NAME,
  'remat': SWITCH,
  'implementation': maybe(
    words('pallas_tpu', 'triton', 'xla', 'reference', 'interpret')
  ),
  'norm_eps': ZERO_OR_MORE,
  'norm_affine': SWITCH,
  'final_norm': SWITCH,
  'scale_rows': SWITCH,
  'positions_from': NAME,
  'position_std': maybe(ZERO_OR_MORE),
  'project': SWITCH,
  'activation': NAME,
  'init': NAME,
  'first_order': NAME,
  'hidden': WIDTHS,
  'batch_norm': SWITCH,
  'interaction': NAME,
  'itself': SWITCH,
  'bottom': WIDTHS,
  'top': WIDTHS,
  'structure': NAME,
  'cross': whole(0, 2**16),
  'rank': whole(0, 2**20),
  'experts': whole(0, 2**16),
  'share_gate': SWITCH,
  'stacked_hidden': WIDTHS,
  'hidden1': WIDTHS,
  'hidden2': WIDTHS,
  'selection': SWITCH,
  'context1': some(NAME),
  'context2': some(NAME),
  'selection_hidden': WIDTHS,
  'layers': whole(1, 2**16),
  'fmb': dataclasses.replace(WIDTH, many='either', filled=True),
  'lcb': dataclasses.replace(WIDTH, many='either', filled=True),
  'fm': NAME,
  'attentive': SWITCH,
  'compress': WIDTH,
  'attention_hidden': WIDTHS,
  'fmb_hidden': WIDTHS,
  'number_vectors': WIDTH,
  'group_vectors': WIDTH,
  'group_hidden': WIDTHS,
  'last_relu': SWITCH,
  'residual_bias': SWITCH,
  'fmb_batch_norm': SWITCH,
  'top_batch_norm': SWITCH,
  'zero': some(NAME),
}
# Sections that take any name, whose values are numbers.
NAMED = {'model.important': WIDTH, 'model.small': WIDTH}
# Keys of entries of `tables` that are no options of a row optimizer.
ENTRIES = dict.fromkeys(('rate', 'init', 'l2'), ZERO_OR_MORE)


def find_rule(key: str, task: str) -> Rule | None:
  """The rule of a key; None for keys of tasks from outside the library.

  >>> find_rule('train.batch_size', 'ranking').describe()
  'a whole number, at least 1'

  Args:
    key: dotted.
    task: of the config.
  """
  section, _, field = key.partition('.')
  own = {
    'retrieval': RETRIEVAL,
    'ranking': RANKING,
    'request_ranking': REQUESTS,
  }.get(task)
  if own is None:  # its models and data are not known here
    dropout = section == 'model' and 'dropout' in field
    return DECAY if dropout else SHARED.get(key)
  for prefix, rule in NAMED.items():
    if key.startswith(f'{prefix}.'):
      return rule
  if section == 'model':
    return None if task == 'request_ranking' else MODEL.get(field)
  return own.get(key) or SHARED.get(key)
