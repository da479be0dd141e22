"""Tables of what makes models smaller, in the form of tables.py.

Maps that share rows (docs/learned_hash.md) and searches (docs/dnas.md).
"""

_LOSSES = (
  ('seeds', 'seeds', 'd'),
  ('NE', 'ne', '.4f'),
  ('±', 'ne_std', '.4f'),
  ('from `hash`', 'ne_diff', '+.4f'),
  ('±', 'ne_ci', '.4f'),
  ('AUC', 'auc', '.4f'),
  ('from `hash`', 'auc_diff', '+.4f'),
  ('±', 'auc_ci', '.4f'),
  ('log loss', 'logloss', '.4f'),
  ('bytes', 'bytes', ',.0f'),
  ('times smaller', 'times', '.1f'),
  ('rows alone', 'share', '.0%'),
  ('core-seconds', 'core_s', ',.0f'),
)


def _list_cases(data: str, *compressions: int) -> dict:
  """A table of the means of a data set, with a row for each value beside."""
  return {
    'files': ('cpu2/learned_hash',),
    'where': {
      'kind': 'mean',
      'data': data,
      'compression': (1, *compressions),
    },
    'columns': (('data, map', 'case', ''), *_LOSSES),
  }


_HASH = {
  'hash_clicks': _list_cases('clicks/2000', 10, 100),
  'hash_many': _list_cases('clicks/20000', 2, 10, 100),
  'hash_films': _list_cases('movielens', 2, 10, 100),
  'hash_frappe': _list_cases('frappe', 5, 20),
  'hash_rows': {
    'files': ('cpu2/learned_hash',),
    'where': {
      'kind': 'mean',
      'data': tuple(f'rows/{50_000 << i}' for i in range(6)),
    },
    'columns': (
      ('examples, map', 'case', ''),
      ('seeds', 'seeds', 'd'),
      ('NE', 'ne', '.4f'),
      ('±', 'ne_std', '.4f'),
      ('least', 'floor', '.4f'),
      ('adjusted Rand index', 'rand', '.3f'),
      ('pairs of one kind', 'alike', '.3f'),
      ('core-seconds', 'core_s', ',.0f'),
    ),
  },
  'hash_planes': {
    'files': ('cpu2/learned_hash_plane',),
    'where': {'kind': 'bucket', 'plane': 'films'},
    'columns': (
      ('row', 'case', ''),
      ('sightings', 'sightings', ',d'),
      ('films', 'titles', ''),
    ),
  },
  'hash_deciles': {
    'files': ('cpu2/learned_hash_deciles',),
    'where': {'kind': 'mean', 'map': 'learned'},
    'columns': (
      ('map, tenth', 'case', ''),
      ('seeds', 'seeds', 'd'),
      ('seen at least', 'seen', ',d'),
      ('examples', 'examples', ',d'),
      ('log loss', 'logloss', '.4f'),
      ('from `frequency`', 'logloss_diff', '+.4f'),
      ('±', 'logloss_ci', '.4f'),
    ),
  },
  'hash_drift': {
    'files': ('cpu2/learned_hash_drift',),
    'where': {'kind': ('mean', 'age')},
    'columns': (
      ('case', 'case', ''),
      ('seeds', 'seeds', 'd'),
      ('NE', 'ne', '.4f'),
      ('±', 'ne_std', '.4f'),
      ('difference', 'ne_diff', '+.4f'),
      ('±', 'ne_ci', '.4f'),
      ('least', 'floor', '.4f'),
      ('renewals', 'renewals', '.0f'),
      ('core-seconds of a map', 'map_core_s', '.2f'),
      ('core-seconds', 'core_s', ',.0f'),
    ),
  },
  'hash_steps': {
    'files': ('cpu2/learned_hash_cost',),
    'names': {
      'step/rows': 'rows of 2,000 values',
      'step/hash': '20,000 values, `hash`',
      'step/learned': '20,000 values, `learned`',
      'step/host': '20,000 values, unpacked by the host',
    },
    'columns': (
      ('a step reads', 'name', ''),
      ('core-ms', 'core_ms', '.1f'),
      ('a quarter is below', 'low', '.1f'),
      ('above', 'high', '.1f'),
      ('times `rows`', 'times', '.2f'),
      ('turns', 'turns', 'd'),
    ),
  },
  'hash_learning': {
    'files': ('cpu2/learned_hash_cost',),
    'names': {
      'learn/100000': '100,000',
      'learn/1000000': '1,000,000',
      'learn/10000000': '10,000,000',
    },
    'columns': (
      ('ids', 'name', ''),
      ('rows', 'rows', ',d'),
      ('core-seconds', 'core_s', ',.1f'),
      ('seconds', 'wall_s', ',.1f'),
      ('most memory, GB', 'peak_gb', '.2f'),
    ),
  },
}

_DNAS = {
  'dnas_rows': {
    'files': ('cpu2/dnas',),
    'names': {
      'rows/whole': 'a row for each value',
      'rows/uniform': 'equal tables',
      'rows/search': 'searched, as it was chosen',
      'rows/found': 'the same with three more seeds',
    },
    'columns': (
      ('tables', 'name', ''),
      ('runs', 'seeds', 'd'),
      ('NE', 'ne', '.4f'),
      ('±', 'ne_std', '.4f'),
      ('AUC', 'auc', '.4f'),
      ('bytes', 'bytes', ',.0f'),
      ('rows of fields that tell', 'telling_rows', ',.0f'),
      ('of the others', 'silent_rows', ',.0f'),
      ('parameters of the supernet, times', 'supernet_x', '.2f'),
      ('core-seconds of a search', 'run_core_s', ',.0f'),
      ('of a training', 'trained_s', ',.1f'),
    ),
  },
  'dnas_planted': {
    'files': ('cpu2/dnas',),
    'where': {'kind': ('mean', 'known', 'random'), 'budget': (200, 300, 900)},
    'columns': (
      ('search, most operations', 'case', ''),
      ('searches', 'seeds', 'd'),
      ('models within', 'models', '.0f'),
      ('regret', 'regret', '.4f'),
      ('±', 'regret_ci', '.4f'),
      ('noise', 'noise', '.4f'),
      ('on the front', 'on_front', '.0%'),
      ('mean place', 'place', '.1f'),
      ('silent fields with wide tables', 'silent_wide', '.1f'),
      ('Spearman, within', 'spearman_within', '.2f'),
      ('of size alone', 'spearman_size', '.2f'),
      ('at most', 'spearman_halves', '.2f'),
      ('models trained', 'trained', '.0f'),
      ('core-seconds of a search', 'run_core_s', ',.0f'),
      ('of a training', 'trained_s', ',.1f'),
    ),
  },
}

_DNAS_FRAPPE = {
  'dnas_frappe': {
    'files': ('cpu2/dnas',),
    'names': {
      'frappe/hand-made': 'hand-made',
      'frappe/search/full': 'searched, as each was chosen by validation',
      'frappe/found/full': 'these three models with three more seeds',
      'frappe/chosen/full': 'the one that validates best, five more seeds',
      'frappe/random search/1': 'by chance, for the cost of a search',
      'frappe/random search/3': 'by chance, for that of three',
    },
    'columns': (
      ('models', 'name', ''),
      ('runs', 'seeds', 'd'),
      ('of how many trained', 'trained', '.0f'),
      ('operations', 'flops', ',.0f'),
      ('bytes', 'bytes', ',.0f'),
      ('AUC', 'auc', '.4f'),
      ('±', 'auc_std', '.4f'),
      ('from hand-made', 'auc_diff', '+.4f'),
      ('± of that', 'auc_ci', '.4f'),
      ('log loss', 'logloss', '.4f'),
      ('from hand-made', 'logloss_diff', '+.4f'),
      ('± of that', 'logloss_ci', '.4f'),
      ('core-seconds of a supernet', 'core_s', ',.0f'),
      ('of a search', 'run_core_s', ',.0f'),
    ),
  },
  'dnas_frappe_models': {
    'files': ('cpu2/dnas',),
    'where': {'kind': ('scaled model',)},
    'columns': (
      ('hand-made, narrower', 'chosen', ''),
      ('operations', 'flops', ',.0f'),
      ('bytes', 'bytes', ',.0f'),
      ('AUC', 'auc', '.4f'),
      ('log loss', 'logloss', '.4f'),
    ),
  },
  'dnas_frappe_ranking': {
    'files': ('cpu2/dnas',),
    'where': {'kind': ('supernet', 'ranking')},
    'columns': (
      ('supernet', 'case', ''),
      ('L2, times', 'factor', 'g'),
      ('AUC of the mixture', 'valid_auc', '.4f'),
      ('its log loss', 'valid_logloss', '.4f'),
      ('Spearman, log loss', 'spearman', '.2f'),
      ('from', 'spearman_low', '.2f'),
      ('to', 'spearman_high', '.2f'),
      ('Spearman, AUC', 'spearman_auc', '.2f'),
      ('from', 'spearman_auc_low', '.2f'),
      ('to', 'spearman_auc_high', '.2f'),
    ),
  },
}

COMPACT = {**_HASH, **_DNAS, **_DNAS_FRAPPE}
