"""Tables of what small data mean, in the form of tables.py."""

PARTS = (
  'categories',
  'numbers',
  'lists',
  'dates',
  'kinds by looking',
  'labels',
  'libsvm',
  'times',
  'what is trained',
  'parts',
  'files',
  'weights',
  'shares',
  'predictions',
  'ranking metrics',
  'progressive evaluation',
  'retrieval metrics',
  'monitors',
  'rates',
)
MEANING = {
  'meaning': {
    'files': ('cpu2/meaning_parts',),
    'columns': (
      ('part', 'case', ''),
      ('cases', 'cases', 'd'),
      ('as expected', 'equal', 'd'),
    ),
  },
  **{
    f'meaning_{part.replace(" ", "_")}': {
      'files': ('cpu2/meaning',),
      'where': {'part': part},
      'columns': (
        ('case', 'case', ''),
        ('against', 'against', ''),
        ('expected', 'expected', ''),
        ('this library', 'got', ''),
        ('forms that agree', 'engines', ''),
      ),
    }
    for part in PARTS
  },
}
