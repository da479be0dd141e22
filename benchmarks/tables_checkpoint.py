"""Tables of what checkpoints by rows cost a training, in the form of tables.py.

Those of bytes and of quantisers are in tables_scale_out.py.
"""

_QUALITY = (
  ('data', 'data', ''),
  ('restores', 'restores', 'd'),
  ('bits', 'bits', 'd'),
  ('method', 'method', ''),
  ('seeds', 'seeds', 'd'),
  ('log loss', 'logloss', '.5f'),
  ('more, %', 'more', '+.4f'),
  ('± (std)', 'more_std', '.4f'),
  ('± (95 % of the mean)', 'more_95', '.4f'),
  ('least', 'least', '+.4f'),
  ('most', 'most', '+.4f'),
)

CHECKPOINT = {
  'restore_quality_controls': {
    'files': ('cpu2/restore_quality',),
    'columns': (
      ('run', 'case', ''),
      ('seeds', 'seeds', 'd'),
      ('AUC', 'auc', '.4f'),
      ('log loss', 'logloss', '.5f'),
      ('± (std)', 'logloss_std', '.5f'),
      ('more, %', 'more', '+.4f'),
      ('± (std)', 'more_std', '.4f'),
      ('least', 'least', '+.4f'),
      ('most', 'most', '+.4f'),
    ),
    'where': {'kind': ('plain', 'nudged')},
  },
  'restore_quality_claimed': {
    'files': ('cpu2/restore_quality',),
    'columns': (
      *_QUALITY,
      ('the paper', 'claimed', ''),
      ('here', 'verdict', ''),
      ('seeds it would take', 'needed', ',d'),
    ),
    'where': {'claimed': '≤ 0.01 %'},
  },
  'restore_quality_read': {
    'files': ('cpu2/restore_quality',),
    'columns': tuple(c for c in _QUALITY if c[1] != 'restores'),
    'where': {'kind': 'read'},
  },
  'restore_quality': {
    'files': ('cpu2/restore_quality',),
    'columns': _QUALITY,
    'where': {'kind': 'restored'},
  },
  'checkpoint_stall': {
    'files': ('cpu2/checkpoint_stall',),
    'columns': (
      ('rows', 'rows', ',d'),
      ('way', 'way', ''),
      ('bits', 'bits', 'd'),
      ('MB written', 'written_bytes', 'MB'),
      ('call, ms', 'call_ms', ',.0f'),
      ('stop, ms (median)', 'stop_ms', ',.0f'),
      ('least', 'min_stop_ms', ',.0f'),
      ('Orbax / this', 'of_orbax_x', '.1f'),
      ('call, core-ms', 'call_core_ms', ',.0f'),
      ('stop, core-ms', 'stop_core_ms', ',.0f'),
      ('Orbax / this', 'of_orbax_core_x', '.1f'),
      ('complete after, s', 'complete_s', '.1f'),
      ('a step meanwhile / otherwise', 'step_x', '.2f'),
      ('training lost, s', 'lost_s', '.2f'),
      ('all, core-s', 'core_s', '.1f'),
      ('load of the machine', 'load_1min', '.1f'),
    ),
  },
  'touched_rows': {
    'files': ('cpu2/touched_rows',),
    'columns': (
      ('case', 'case', ''),
      ('rows marked', 'ids', ',d'),
      ('step, core-ms (median)', 'core_ms', ',.1f'),
      ('least', 'min_core_ms', ',.1f'),
      ('with marks, more', 'more_x', '+.2%'),
      ('wall, more', 'more_wall_x', '+.2%'),
      ('marking alone, core-ms (median)', 'mark_core_ms', '.3f'),
      ('least', 'min_mark_core_ms', '.3f'),
      ('share of the step', 'share', '.2%'),
      ('least / least', 'min_share', '.2%'),
      ('memory', 'bytes_x', '.2%'),
      ('load of the machine', 'load_1min', '.1f'),
    ),
  },
}
