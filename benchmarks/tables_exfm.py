"""Tables of teachers and students (docs/exfm.md), in the form of tables.py."""

GAINS = (
  ('seeds', 'seeds', 'd'),
  ('NE', 'ne', '.4f'),
  ('±', 'ne_std', '.4f'),
  ('gain, %', 'gain_%', '+.2f'),
  ('±', 'gain_ci', '.2f'),
)
METHODS = {
  'none': 'labels alone (`none`)',
  'one_head': 'one head, as published (`one_head`)',
  'one_head_w': 'one head, its weight searched',
  'head': 'AH (`head`)',
  'adapter': 'AH + SA (`adapter`)',
  'teacher_alone': 'scores alone (`teacher_alone`)',
}
LAGS = (0, 1, 2, 3)

EXFM = {
  'exfm_ladder': {
    'files': ('cpu1/exfm',),
    'names': {
      f'ladder/usual/{student}/{method}': f'{name}, {text}'
      for student, name in {
        'all': 'mean of three',
        'dlrm': 'DLRM',
        'dcn': 'DCN-V2',
        'deepfm': 'DeepFM',
      }.items()
      for method, text in METHODS.items()
    },
    'columns': (
      ('student, method', 'name', ''),
      *GAINS,
      ('from the step before, %', 'step_%', '+.2f'),
      ('±', 'step_ci', '.2f'),
      ('from the searched head, %', 'tuned_%', '+.2f'),
      ('±', 'tuned_ci', '.2f'),
      ('AUC gain, %', 'auc_gain_%', '+.2f'),
      ('predicted / actual', 'calibration', '.3f'),
      ('teacher NE', 'teacher_ne', '.4f'),
      ('floor', 'floor', '.4f'),
      ('core-seconds', 'core_s', '.1f'),
    ),
  },
  'exfm_lag': {
    'files': ('cpu1/exfm',),
    'where': {
      'kind': 'mean',
      'part': 'lag',
      'method': ('one_head', 'head', 'adapter'),
    },
    'columns': (
      ('stream', 'stream', ''),
      ('windows late', 'lag', 'd'),
      ('method', 'method', ''),
      *GAINS,
      ('from no lag, %', 'late_%', '+.2f'),
      ('±', 'late_ci', '.2f'),
      ('teacher NE', 'teacher_ne', '.4f'),
      ('from the step before, %', 'step_%', '+.2f'),
      ('±', 'step_ci', '.2f'),
    ),
  },
  'exfm_transfer': {
    'files': ('cpu1/exfm',),
    'where': {'kind': 'mean', 'part': 'transfer', 'method': 'head'},
    'columns': (
      ('teacher', 'teacher', ''),
      *GAINS,
      ('teacher NE', 'teacher_ne', '.4f'),
      ('of its lead', 'transfer', '.0%'),
    ),
  },
  'exfm_bias': {
    'files': ('cpu1/exfm',),
    'where': {
      'kind': 'mean',
      'part': 'bias',
      'method': ('one_head', 'one_head_w', 'head'),
    },
    'columns': (
      ('segments', 'stream', ''),
      ('method', 'method', ''),
      *GAINS,
      ('teacher NE', 'teacher_ne', '.4f'),
      ('from the step before, %', 'step_%', '+.2f'),
      ('±', 'step_ci', '.2f'),
      ('from the searched head, %', 'tuned_%', '+.2f'),
      ('±', 'tuned_ci', '.2f'),
    ),
  },
  'exfm_step': {
    'files': ('cpu1/exfm_step',),
    'columns': (
      ('where / what', 'case', ''),
      ('core-ms', 'core_ms', '.2f'),
      ('times', 'x', '.3f'),
      ('of', 'of', ''),
      ('a quarter is below', 'x_low', '.3f'),
      ('above', 'x_high', '.3f'),
      ('parameters', 'parameters', ',d'),
      ('of the heads', 'heads', ',d'),
      ('of the teacher', 'teacher', 'd'),
    ),
  },
  'exfm_public': {
    'files': ('cpu2/exfm_public',),
    'where': {'kind': 'mean'},
    'columns': (
      ('data, method', 'case', ''),
      *GAINS,
      ('± over data', 'data_ci', '.2f'),
      ('AUC', 'auc', '.4f'),
      ('AUC gain', 'auc_gain', '+.4f'),
      ('±', 'auc_gain_ci', '.4f'),
      ('teacher NE', 'teacher_ne', '.4f'),
    ),
  },
}
