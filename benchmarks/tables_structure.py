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
}
