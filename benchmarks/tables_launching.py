"""Tables of sweeps (docs/launching.md), in the form of tables.py."""

LAUNCHING = {
  'launching_kills': {
    'files': ('cpu2/launching',),
    'columns': (
      ('part', 'case', ''),
      ('trials', 'trials', 'd'),
      ('runs', 'runs', 'd'),
      ('complete', 'complete', 'd'),
      ('trials, or runs, with equal curves', 'equal_curves', 'd'),
      ('starts beyond the first', 'started_again', 'd'),
    ),
    'where': {'kind': 'kills'},
  },
  'launching': {
    'files': ('cpu2/launching',),
    'columns': (
      ('what', 'case', ''),
      ('runs', 'runs', 'd'),
      ('seconds', 'wall_s', '.1f'),
      ('core-seconds', 'core_s', '.1f'),
      ('seconds, of the loop', 'wall_x', '.2f'),
      ('core-seconds of the launcher itself', 'launcher_core_s', '.1f'),
      ('of those of the runs', 'launcher_share', '.1%'),
    ),
    'where': {'kind': 'time'},
  },
}
