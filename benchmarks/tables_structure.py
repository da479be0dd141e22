"""Tables of docs/structure.md, in the form of tables.py."""

_FILES = ('cpu2/structure',)

STRUCTURE = {
  'structure_walks': {
    'files': _FILES,
    'columns': (
      ('what is added', 'job', ''),
      ('how', 'way', ''),
      ('walked by', 'example', ''),
      ('files before', 'before_files', 'd'),
      ('files', 'files', 'd'),
      ('of them in the packages', 'in_packages', 'd'),
      ('places before', 'before_places', 'd'),
      ('places', 'places', 'd'),
    ),
    'where': {'kind': 'walk'},
  },
  'structure_files': {
    'files': _FILES,
    'columns': (
      ('what is added', 'job', ''),
      ('how', 'way', ''),
      ('files', 'list', ''),
    ),
    'where': {'kind': 'walk'},
  },
  'structure_lines': {
    'files': _FILES,
    'columns': (
      ('package', 'case', ''),
      ('files before', 'before_files', 'd'),
      ('files', 'files', 'd'),
      ('lines before', 'before_lines', ',d'),
      ('lines', 'lines', ',d'),
      ('more', 'more', '+,d'),
    ),
    'where': {'kind': 'lines'},
  },
  'structure_step': {
    'files': _FILES,
    'columns': (
      ('step', 'case', ''),
      ('depth before', 'before_depth', 'd'),
      ('depth', 'depth', 'd'),
      ('functions before', 'before_functions', 'd'),
      ('functions', 'functions', 'd'),
      ('files before', 'before_files', 'd'),
      ('files', 'files', 'd'),
    ),
    'where': {'kind': 'trace'},
  },
  'structure_imports': {
    'files': _FILES,
    'columns': (
      ('', 'case', ''),
      ('own modules before', 'before_modules', 'd'),
      ('own modules', 'modules', 'd'),
      ('of `train` before', 'before_train_modules', 'd'),
      ('of `train`', 'train_modules', 'd'),
    ),
    'where': {'kind': 'imports'},
  },
  'same_curves': {
    'files': ('cpu2/same_curves',),
    'columns': (
      ('run', 'case', ''),
      ('before', 'base', ''),
      ('commit', 'commit', ''),
      ('steps', 'steps', ',d'),
      ('numbers compared', 'values', ',d'),
      ('predictions compared', 'predictions', ',d'),
      ('bits', 'same', ''),
    ),
  },
  'both_commits': {
    'files': ('cpu1/both_commits',),
    'columns': (
      ('what', 'case', ''),
      ('cases', 'cases', 'd'),
      ('turns', 'turns', 'd'),
      ('before, core-ms', 'base_ms', ',.2f'),
      ('now', 'this_ms', ',.2f'),
      ('now / before', 'time_x', '.2f'),
      ('least', 'least_x', '.2f'),
      ('most', 'most_x', '.2f'),
      ('peak before, MB', 'base_peak_mb', ',.0f'),
      ('peak now', 'this_peak_mb', ',.0f'),
      ('now / before', 'peak_x', '.2f'),
    ),
    'where': {'kind': ('step', 'all', 'process')},
  },
  'mutation': {
    'files': ('cpu1/mutation',),
    'columns': (
      ('mutants', 'mutants', 'd'),
      ('killed', 'killed', 'd'),
      ('by time', 'timeout', 'd'),
      ('survived', 'survived', 'd'),
      ('equivalent', 'equivalent', 'd'),
      ('score', 'score', '.1%'),
    ),
    'where': {'case': 'score'},
  },
}
