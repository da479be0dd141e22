"""Tables of requests and generative rankers, in the form of tables.py."""

_INFERENCE_STEPS = range(90, 100)

REQUESTS = {
  'gr_stream_ceilings': {
    'files': ('cpu2/gr_stream_ceilings',),
    'columns': (
      ('told', 'case', ''),
      ('all steps: NE', 'ne', '.4f'),
      ('AUC', 'auc', '.4f'),
      ('accuracy', 'accuracy', '.3f'),
      ('NE, steps as in training', 'learned_ne', '.4f'),
      ('generated: NE', 'generated_ne', '.4f'),
      ('±', 'generated_ne_error', '.4f'),
      ('AUC', 'generated_auc', '.4f'),
      ('±', 'generated_auc_error', '.4f'),
      ('gAUC', 'generated_gauc', '.3f'),
      ('accuracy', 'generated_accuracy', '.3f'),
    ),
    'where': {'kind': ('ceiling', 'published')},
  },
  'gr_stream_by_step': {
    'files': ('cpu2/gr_stream_ceilings',),
    'columns': (
      ('NE, told', 'case', ''),
      *((f'{step}', f'ne@{step}', '.3f') for step in _INFERENCE_STEPS),
    ),
    'where': {'kind': 'ceiling'},
  },
  'gr_stream_rates': {
    'files': ('cpu2/gr_stream_ceilings',),
    'columns': (
      ('liked', 'case', ''),
      ('all steps', 'rate', '.4f'),
      *((f'{step}', f'rate@{step}', '.4f') for step in _INFERENCE_STEPS),
      ('all steps, generated', 'generated_rate', '.4f'),
    ),
    'where': {'kind': 'rate'},
  },
  'gr_stream_speed': {
    'files': ('cpu2/gr_stream_ceilings',),
    'columns': (
      ('users', 'users', ',d'),
      ('events drawn', 'drawn', ',d'),
      ('wall seconds', 'wall_s', '.1f'),
      ('core-seconds', 'core_s', '.1f'),
      ('users/s', 'users_per_s', ',.0f'),
      ('users/core-second', 'users_per_core_s', ',.0f'),
      ('events/core-second', 'drawn_per_core_s', ',.0f'),
      ('load of the machine', 'load_1min', '.1f'),
    ),
    'where': {'kind': 'speed'},
  },
  'gr_parity': {
    'files': ('cpu2/gr_parity',),
    'columns': (
      ('variant', 'case', ''),
      ('block', 'block', '.1e'),
      ('all layers', 'encoder', '.1e'),
      ('scores', 'scores', '.1e'),
      ('loss', 'loss', '.1e'),
      ('gradients', 'gradients', '.1e'),
      ('layout of the training', 'training_layout', '.1e'),
      ('two candidates swapped: same bits', 'swap_exact', ''),
      ('alone in a batch: same bits', 'company_exact', ''),
    ),
  },
  'gr_streaming': {
    'files': ('cpu2/gr_streaming',),
    'columns': (
      ('model', 'name', ''),
      ('seeds', 'seeds', 'd'),
      ('NE, steps 74–89', 'ne', '.4f'),
      ('±', 'ne_std', '.4f'),
      ('AUC', 'auc', '.4f'),
      ('±', 'auc_std', '.4f'),
      ('NE, steps 1–89', 'ne_all', '.4f'),
      ('±', 'ne_all_std', '.4f'),
      ('test: NE', 'test_ne', '.4f'),
      ('±', 'test_ne_std', '.4f'),
      ('AUC', 'test_auc', '.4f'),
      ('±', 'test_auc_std', '.4f'),
      ('tokens', 'tokens', ',.0f'),
      ('core-seconds of training', 'train_core_s', ',.0f'),
    ),
    'where': {'kind': 'mean'},
  },
  'gr_streaming_windows': {
    'files': ('cpu2/gr_streaming',),
    'columns': (
      ('NE of the steps', 'name', ''),
      ('1–9', 'ne@1', '.4f'),
      *((f'{n}–{n + 15}', f'ne@{n}', '.4f') for n in range(10, 90, 16)),
    ),
    'where': {'kind': 'mean'},
  },
  'gr_memory': {
    'files': ('cpu2/gr_memory',),
    'columns': (
      ('read', 'case', ''),
      ('events', 'events', ',d'),
      ('core-seconds', 'core_s', '.1f'),
      ('kept, bytes an event', 'kept_bytes', '.0f'),
      ('while reading, bytes an event', 'peak_bytes', '.0f'),
      ('kept, MB', 'kept_MB', '.0f'),
    ),
    'where': {'kind': 'read'},
  },
  'gr_memory_scores': {
    'files': ('cpu2/gr_memory',),
    'columns': (
      ('scored by', 'case', ''),
      ('candidates', 'events', ',d'),
      ('core-seconds', 'core_s', '.1f'),
      ('wall seconds', 'wall_s', '.1f'),
      ('memory grows by, MB', 'grown_MB', '.0f'),
      ('of the process, MB', 'peak_MB', '.0f'),
    ),
    'where': {'kind': 'score'},
  },
}
