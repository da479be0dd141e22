"""Tables of docs/numerics.md."""

NUMERICS = {
  'qsnr': {
    'files': ('cpu2/qsnr',),
    'where': {
      'case': (
        'bfloat16, by rows of 1024', 'mx9', 'mx6', 'mx4', 'msfp16', 'msfp12',
        'mxint8', 'mxfp8_e4m3',
        'mxfp8_e4m3/rceil', 'mxfp8_e5m2', 'mxfp6_e2m3', 'mxfp6_e3m2',
        'mxfp4_e2m1',
      ),
    },
    'columns': (
      ('format', 'case', ''),
      ('bits', 'mean_bits', '.2f'),
      ('QSNR, dB', 'qsnr_db', '.2f'),
      ('± over vectors', 'spread_db', '.2f'),
      ('published', 'published_db', '.1f'),
      ('bound', 'bound_db', '.2f'),
      ('above it', 'least_margin_db', '.1f'),
      ('below the front', 'to_front_db', '.2f'),
    ),
  },
  'numerics_peers': {
    'files': ('cpu2/numerics_peers',),
    'columns': (
      ('library/format/option', 'case', ''),
      ('version', 'version', ''),
      ('numbers', 'numbers', ',d'),
      ('differ', 'differ', ',d'),
      ('differ for a known reason', 'known', ',d'),
      ('which', 'known_as', ''),
    ),
  },
  'quantiser_speed': {
    'files': ('cpu2/quantiser_speed',),
    'columns': (
      ('what', 'case', ''),
      ('ms', 'ms', '.1f'),
      ('10^9 numbers a second', 'gelem_s', '.2f'),
      ('in copies', 'copy_x', '.2f'),
      ('decoding, ms', 'back_ms', '.1f'),
      ('FBGEMM, ms', 'peer_ms', '.1f'),
      ('its decoding, ms', 'peer_back_ms', '.1f'),
    ),
  },
  'serving_rows': {
    'files': ('cpu2/serving_rows',),
    'where': {'part': 'quality', 'metric': ('auc', 'hr@10')},
    'columns': (
      ('data, model', 'model', ''),
      ('rows in', 'format', ''),
      ('tables, MB', 'table_mb', '.3f'),
      ('share', 'bytes_x', '.1%'),
      ('metric', 'metric', ''),
      ('seeds', 'seeds', 'd'),
      ('value', 'value', '.4f'),
      ('minus float32', 'minus', '+.5f'),
      ('±', 'minus_se', '.5f'),
    ),
  },
  'serving_rows_speed': {
    'files': ('cpu2/serving_rows',),
    'where': {'part': 'speed'},
    'columns': (
      ('rows in', 'format', ''),
      ('by', 'way', ''),
      ('table, MB', 'table_mb', '.0f'),
      ('ms', 'ms', '.1f'),
      ('10^6 lookups a second', 'mlookups_s', '.1f'),
      ('time / float32, C++', 'float32_x', '.2f'),
      ('FBGEMM, ms', 'peer_ms', '.1f'),
      ('FBGEMM / this', 'peer_x', '.2f'),
    ),
  },
  'low_precision': {
    'files': ('cpu2/low_precision',),
    'where': {'kind': 'mean'},
    'columns': (
      ('model/format', 'case', ''),
      ('products', 'products', ''),
      ('seeds', 'seeds', 'd'),
      ('AUC', 'auc', '.4f'),
      ('minus bfloat16', 'auc_minus', '+.6f'),
      ('±', 'auc_minus_se', '.6f'),
      ('log loss', 'logloss', '.4f'),
      ('NE, %', 'ne_minus_%', '+.4f'),
      ('±', 'ne_minus_%_se', '.4f'),
      ('core-s', 'core_s', ',.0f'),
    ),
  },
}  # fmt: skip
