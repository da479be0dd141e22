"""What `python -m benchmarks.tbsm_search --knobs` prints."""

KNOBS = {
  'interests': {
    'def': dict(rate=0.003, rows_rate=0.03, table_l2=0.0, dropout=0.0),
    'ind': dict(rate=0.01, rows_rate=0.03, table_l2=0.0, dropout=0.0),
    'dot': dict(rate=0.01, rows_rate=0.03, table_l2=0.0, dropout=0.0),
    'mean': dict(rate=0.003, rows_rate=0.01, table_l2=0.0, dropout=0.0),
    'concat': dict(rate=0.01, rows_rate=0.1, table_l2=0.0, dropout=0.0),
    'attention': dict(rate=0.01, rows_rate=0.1, table_l2=0.0, dropout=0.0),
    'gru': dict(rate=0.01, rows_rate=0.03, table_l2=0.0, dropout=0.0),
    'lstm': dict(rate=0.01, rows_rate=0.1, table_l2=0.0, dropout=0.0),
    'din': dict(rate=0.01, rows_rate=0.01, table_l2=0.0, dropout=0.0),
  },
  'movielens': {
    'def': dict(rate=0.003, rows_rate=0.1, table_l2=0.0, dropout=0.0),
    'ind': dict(rate=0.003, rows_rate=0.03, table_l2=0.0, dropout=0.0),
    'dot': dict(rate=0.003, rows_rate=0.03, table_l2=0.0, dropout=0.0),
    'mean': dict(rate=0.003, rows_rate=0.03, table_l2=0.0, dropout=0.0),
    'concat': dict(rate=0.03, rows_rate=0.01, table_l2=0.0, dropout=0.0),
    'attention': dict(rate=0.003, rows_rate=0.1, table_l2=0.0, dropout=0.0),
    'gru': dict(rate=0.03, rows_rate=0.01, table_l2=0.0, dropout=0.0),
    'lstm': dict(rate=0.01, rows_rate=0.01, table_l2=0.0, dropout=0.0),
    'din': dict(rate=0.003, rows_rate=0.01, table_l2=0.0, dropout=0.0),
  },
}
