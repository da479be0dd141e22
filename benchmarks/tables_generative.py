"""Tables of generative ranking, in the form of tables.py."""

_MOST = (1024, 2048, 4096, 8192)  # events that are read of a history

GENERATIVE = {
  'stochastic_length': {
    'files': ('cpu2/stochastic_length',),
    'columns': (
      ('days', 'days', 'd'),
      ('alpha', 'alpha', '.1f'),
      *(
        column
        for n in _MOST
        for column in (
          (f'N = {n:,}', f'drawn_{n}', '.1f'),
          ('paper', f'paper_{n}', '.1f'),
        )
      ),
    ),
    'where': {'kind': 'sparsity'},
  },
  'stochastic_length_fit': {
    'files': ('cpu2/stochastic_length',),
    'columns': (
      ('days', 'days', 'd'),
      ('mean', 'mean', ',.0f'),
      ('deviation', 'deviation', ',.0f'),
      ('share below', 'below', '.1%'),
      ('alpha = 2: off by at most', 'fit_off', '.2f'),
      *((f'others, N = {n:,}', f'off_{n}', '.1f') for n in _MOST),
    ),
    'where': {'kind': 'fit'},
  },
  'stochastic_length_train': {
    'files': ('cpu2/stochastic_length_train',),
    'columns': (
      ('histories', 'name', ''),
      ('seeds', 'seeds', 'd'),
      ('tokens', 'tokens', ',.0f'),
      ('fewer tokens', 'saved_text', ''),
      ('training, core-seconds', 'train_core_s', ',.0f'),
      ('fewer', 'saved_core', '.0%'),
      ('NE, last 16 steps', 'ne', '.4f'),
      ('difference by seed', 'ne_gain_text', ''),
      ('±', 'ne_gain_std', '.4f'),
      ('AUC', 'auc', '.4f'),
      ('difference', 'auc_gain', '+.4f'),
      ('±', 'auc_gain_std', '.4f'),
      ('test NE', 'test_ne', '.4f'),
      ('difference', 'test_ne_gain', '+.4f'),
      ('±', 'test_ne_gain_std', '.4f'),
      ('test AUC', 'test_auc', '.4f'),
      ('difference', 'test_auc_gain', '+.4f'),
      ('±', 'test_auc_gain_std', '.4f'),
      ('same as whole', 'as_whole', ''),
    ),
    'where': {'kind': ('mean', 'published')},
  },
  'gr_ml1m': {
    'files': ('cpu2/gr_ml1m',),
    'columns': (
      ('data', 'edition', ''),
      ('model', 'name', ''),
      ('seeds', 'seeds', 'd'),
      ('test NE', 'test_ne', '.4f'),
      ('±', 'test_ne_std', '.4f'),
      ('AUC', 'test_auc', '.4f'),
      ('±', 'test_auc_std', '.4f'),
      ('gAUC', 'test_gauc', '.4f'),
      ('calibration', 'test_calibration', '.3f'),
      ('±', 'test_calibration_std', '.3f'),
      ('epoch', 'epoch', '.1f'),
      ('training, core-seconds', 'train_core_s', ',.0f'),
    ),
    'where': {'kind': ('mean', 'count')},
  },
  'gr_scaling': {
    'files': ('cpu2/gr_scaling',),
    'columns': (
      ('model', 'name', ''),
      ('seeds', 'seeds', 'd'),
      ('dense parameters', 'dense', ',d'),
      ('PFLOP', 'pflop', '.5f'),
      ('NE, last 16 steps', 'ne', '.4f'),
      ('±', 'ne_std', '.4f'),
      ('AUC', 'auc', '.4f'),
      ('test NE', 'test_ne', '.4f'),
      ('±', 'test_ne_std', '.4f'),
      ('test AUC', 'test_auc', '.4f'),
      ('training, core-seconds', 'train_core_s', ',.0f'),
    ),
    'where': {'kind': 'mean'},
  },
  'gr_scaling_fit': {
    'files': ('cpu2/gr_scaling',),
    'columns': (
      ('NE = a − b ln C of', 'name', ''),
      ('runs', 'runs', 'd'),
      ('decades of C', 'decades', '.2f'),
      ('b', 'b', '.4f'),
      ('standard error of b', 'b_error', '.4f'),
      ('a', 'a', '.4f'),
      ('R²', 'r2', '.3f'),
    ),
    'where': {'kind': 'fit'},
  },
  'gr_yambda': {
    'files': ('cpu2/gr_yambda',),
    'columns': (
      ('data', 'data', ''),
      ('predictor', 'name', ''),
      ('seeds', 'seeds', 'd'),
      ('reached an AUC of .75', 'reached', ''),
      ('samples until then', 'samples_to_target', ',.0f'),
      ('samples of the pass', 'samples', ',d'),
      ('AUC of the last day', 'test_auc', '.4f'),
      ('±', 'test_auc_std', '.4f'),
      ('NE', 'test_ne', '.4f'),
      ('±', 'test_ne_std', '.4f'),
      ('calibration', 'test_calibration', '.3f'),
      ('rate over that of the rules', 'rate_x', ',.0f'),
      ('training, core-seconds', 'train_core_s', ',.0f'),
    ),
    'where': {'kind': ('mean', 'count', 'ceiling')},
  },
}
