"""Tables of robustness, and of what it costs, in the form of tables.py."""

ROBUSTNESS = {
  'robustness': {
    'files': ('cpu2/robustness',),
    'columns': (
      ('part', 'case', ''),
      ('trials', 'trials', ',d'),
      ('wrong', 'wrong', 'd'),
      ('silent', 'silent', 'd'),
      ('crash', 'crash', 'd'),
      ('traceback', 'traceback', 'd'),
      ('last-resort handler', 'last resort', 'd'),
      ('hang', 'hang', 'd'),
      ('grown', 'grown', 'd'),
    ),
  },
  'robustness_phases': {
    'files': ('cpu2/robustness_phases',),
    'where': {'kind': 'all'},
    'columns': (
      ('phase', 'phase', ''),
      ('signals', 'signals', ',d'),
      ('saved and told', 'saved and told', 'd'),
      ('killed', 'killed', 'd'),
      ('went on', 'went on', 'd'),
      ('over before', 'ended before', 'd'),
      ('bad', 'bad', 'd'),
      ('slowest end, s', 'slowest_s', '.1f'),
    ),
  },
  'robustness_damage': {
    'files': ('cpu2/robustness_damage',),
    'columns': (
      ('opened', 'case', ''),
      ('damaged files', 'openings', ',d'),
      ('refused in a sentence', 'sentence', ',d'),
      ('nothing that is read changed', 'same', ',d'),
      ('earlier step, told', 'earlier_step', ',d'),
      ('written again, told', 'healed', ',d'),
      ('wrong', 'wrong', ',d'),
      ('silent', 'silent', ',d'),
      ('traceback', 'traceback', ',d'),
    ),
  },
  'compile_cache': {
    'files': ('cpu2/compile_cache',),
    'columns': (
      ('smoke run of the command line', 'case', ''),
      ('first, core-seconds', 'first_core_s', '.1f'),
      ('second', 'second_core_s', '.1f'),
      ('first / second', 'core_x', '.1f'),
      ('programs kept', 'programs', 'd'),
      ('MB', 'bytes', 'MB'),
    ),
  },
  'first_metric': {
    'files': ('cpu2/first_metric',),
    'columns': (
      ('data', 'data', ''),
      ('users', 'users', ',d'),
      ('token capacities, or the peer', 'what', ''),
      ('compiled programs', 'start', ''),
      ('of the training step', 'programs', 'd'),
      ('first line, core-seconds', 'first_line_core_s', '.1f'),
      ('first metric, core-seconds', 'metric_core_s', '.1f'),
    ),
  },
  'first_hour': {
    'files': ('cpu2/first_hour',),
    'columns': (
      ('station', 'case', ''),
      ('commands', 'commands', 'd'),
      ('lines printed', 'lines', 'd'),
      ('seconds', 'wall_s', '.0f'),
      ('core-seconds', 'core_s', '.0f'),
      ('what came of it', 'shown', ''),
    ),
  },
  'sealed_open': {
    'files': ('cpu2/sealed_open',),
    'columns': (
      ('histories', 'case', ''),
      ('events', 'events', ',d'),
      ('MB', 'bytes', 'MB'),
      ('write checksums, s', 'seal_s', '.3f'),
      ('open, s', 'open_s', '.3f'),
      ('without checksums, s', 'unsealed_s', '.3f'),
      ('count the items, s', 'count_s', '.3f'),
    ),
  },
}
