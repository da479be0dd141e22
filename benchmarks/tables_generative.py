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
}
