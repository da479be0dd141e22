"""Tables of TBSM and its baselines (docs/tbsm.md), in the form of tables.py."""

DIFFERENCES = (
  ('seeds', 'seeds', 'd'),
  ('AUC', 'auc', '.4f'),
  ('±', 'auc_std', '.4f'),
  ('from `def`', 'auc_diff', '+.4f'),
  ('±', 'auc_ci', '.4f'),
  ('gAUC', 'gauc', '.4f'),
  ('from `def`', 'gauc_diff', '+.4f'),
  ('±', 'gauc_ci', '.4f'),
  ('NE', 'ne', '.4f'),
  ('from `def`', 'ne_diff', '+.4f'),
  ('±', 'ne_ci', '.4f'),
  ('log loss', 'logloss', '.4f'),
  ('parameters', 'parameters', ',d'),
  ('core-seconds', 'core_s', ',.1f'),
)


def _list_cases(*groups: str) -> dict:
  """A table of the means of some groups."""
  return {
    'files': ('cpu2/tbsm',),
    'where': {'kind': 'mean', 'group': groups},
    'columns': (('data, case', 'case', ''), *DIFFERENCES),
  }


TBSM = {
  'tbsm_interests': _list_cases('interests'),
  'tbsm_movielens': _list_cases('movielens/1m'),
  'tbsm_small': _list_cases('movielens/100k', 'movielens/latest'),
  'tbsm_leak': _list_cases('movielens/100k/leak'),
  'tbsm_known': {
    'files': ('cpu2/tbsm',),
    'names': {
      'interests/data': 'generated stream',
      'movielens/1m/data': 'MovieLens 1M',
      'movielens/100k/data': 'MovieLens 100K',
      'movielens/latest/data': 'MovieLens latest-small',
    },
    'columns': (
      ('data', 'name', ''),
      ('least NE', 'floor', '.4f'),
      ('largest AUC', 'best_auc', '.4f'),
      ('AUC of popularity', 'popularity_auc', '.4f'),
    ),
  },
  'tbsm_steps': {
    'files': ('cpu2/tbsm_cost',),
    'where': {'kind': 'step'},
    'columns': (
      ('T', 'T', 'd'),
      ('mechanism', 'mechanism', ''),
      ('lengths', 'shape', ''),
      ('events of a step', 'events', ',.0f'),
      ('core-ms', 'core_ms', '.1f'),
      ('a quarter is below', 'low', '.1f'),
      ('above', 'high', '.1f'),
      ('full / mixed', 'full_x', '.2f'),
    ),
  },
  'tbsm_slopes': {
    'files': ('cpu2/tbsm_cost',),
    'where': {'kind': 'slope'},
    'columns': (
      ('mechanism', 'mechanism', ''),
      ('lengths', 'shape', ''),
      ('core-µs an event', 'us_event', '.2f'),
      ('core-ms without events', 'base_ms', '.1f'),
    ),
  },
  'tbsm_lengths': {
    'files': ('cpu2/tbsm_cost',),
    'where': {'kind': 'mean'},
    'columns': (
      ('data', 'data', ''),
      ('mechanism', 'mechanism', ''),
      ('latest events', 'T', 'd'),
      ('seeds', 'seeds', 'd'),
      ('AUC', 'auc', '.4f'),
      ('±', 'auc_std', '.4f'),
    ),
  },
  'tbsm_refused': {
    'files': ('cpu2/tbsm_cost',),
    'where': {'kind': 'refused', 'data': 'interests'},
    'columns': (
      ('mechanism', 'mechanism', ''),
      ('said of a longer history', 'refused', ''),
    ),
  },
}
