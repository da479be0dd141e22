"""What a manifest may say, checked before any file that it names is opened.

A manifest may come from another machine, and whoever writes one can make its
checksums fit. Every value is therefore checked for its type and its range, and
every name of a file for not leading anywhere else.
"""

import math
import re
import reprlib
from collections.abc import Collection

import ml_dtypes  # noqa: F401, tells NumPy of bfloat16
import numpy as np

_LARGEST = (1 << 62) - 1
_CRC = (1 << 32) - 1
_LATEST = float(1 << 36)  # seconds since 1970, which a calendar still has
_DTYPE = re.compile(r'[a-z][a-z0-9_]{0,30}')
_ARRAY = re.compile(r'[a-z][a-z0-9_]{0,30}\[(\d{1,18}(,\d{1,18})*)?\]')
_DIGEST = re.compile(r'[0-9a-f]{64}')
_MOST_DIMS = 1 << 24
_MOST_ROWS = 1 << 48
_NAME_BYTES = 250  # of a part; file systems allow 255
# What older or shorter manifests leave out.
_DEFAULTS = {'tree': {}, 'host': None, 'data': False}
_ROW_DEFAULTS = {
  'history': [],
  'bits': 32,
  'method': 'adaptive',
  'slots': 'float32',
}
_TABLE_DEFAULTS = {'slots': {}, 'scalars': {}, 'optimizer': ''}


def is_plain_name(name: object) -> bool:
  """Whether a name stays below the directory that it is joined to.

  >>> is_plain_name('rows/item/0-00000.npz')
  True
  >>> is_plain_name('rows/item/../../../.ssh/config')
  False
  """
  if not isinstance(name, str) or not 0 < len(name) <= 4096:
    return False
  if any(c < ' ' or c in '\\\x7f' or '\ud800' <= c <= '\udfff' for c in name):
    return False
  return all(
    part not in ('', '.', '..') and len(part.encode()) <= _NAME_BYTES
    for part in name.split('/')
  )


def check_body(body: dict) -> dict:
  """A manifest on whose values readers can rely.

  Args:
    body: what `manifest.read` has read.

  Returns:
    The same, with defaults for what it omits.

  Raises:
    ValueError: what is wrong with which entry.
  """
  _require_number('step', body.get('step'))
  _check_time(body.get('time', 0.0))
  _check_files(body.get('files'))
  body = _DEFAULTS | body
  _require_mapping('tree', body['tree'])
  for name, text in body['tree'].items():
    if not (isinstance(text, str) and _ARRAY.fullmatch(text)):
      _refuse(f'tree[{_quote(name)}]', text, 'a dtype and a shape')
  if body['host'] is not None:
    _require_mapping('host', body['host'])
  if type(body['data']) is not bool:
    _refuse('data', body['data'], 'true or false')
  if 'rows' in body:
    body['rows'] = _check_rows(body['rows'], body['step'])
  if ('sha256' in body) != ('hmac' in body):
    raise ValueError('it has only one of sha256 and hmac')
  if 'hmac' in body:
    _check_digests(body)
  return body


def check_tables(tables: object) -> dict[str, dict]:
  """The same for the tables of `rows`, or of the position of a copy."""
  _require_mapping('tables', tables)
  checked = {}
  for name, about in tables.items():
    where = f'tables[{_quote(name)}]'
    if not name or len(name) > 1000 or not name.isprintable():
      _refuse('a table', name, 'a name')
    # `features.TableSpec` refuses these, and allows other slashes.
    if '..' in name.replace('\\', '/').split('/'):
      _refuse('a table', name, 'a name without .. for a part')
    _require_mapping(where, about)
    about = checked[name] = _TABLE_DEFAULTS | about
    _require_number(f'rows of {where}', about.get('rows'), _MOST_ROWS, least=1)
    _require_number(f'dim of {where}', about.get('dim'), _MOST_DIMS, least=1)
    _check_dtype(f'dtype of {where}', about.get('dtype'))
    _require_mapping(f'slots of {where}', about['slots'])
    for slot, per in about['slots'].items():
      _require_choice(
        f'slot {_quote(slot)} of {where}', per, ('row', 'element')
      )
    _require_mapping(f'scalars of {where}', about['scalars'])
    for slot, value in about['scalars'].items():
      _require_number(
        f'scalar {_quote(slot)} of {where}', value, least=-_LARGEST
      )
    _require_text(f'optimizer of {where}', about['optimizer'])
  return checked


def _check_time(time: object) -> None:
  fits = type(time) in (int, float) and 0 <= time < _LATEST
  if not fits:  # NaN, for one
    _refuse('time', time, 'seconds since 1970')


def _check_files(files: object) -> None:
  _require_mapping('files', files)
  for name, entry in files.items():
    if not is_plain_name(name) or name == 'MANIFEST.json':
      _refuse('a file', name, 'a relative name without .. or \\')
    if type(entry) is not list or len(entry) != 2:
      _refuse(f'files[{_quote(name)}]', entry, '[size, CRC-32]')
    _require_number(f'size of {_quote(name)}', entry[0])
    _require_number(f'CRC-32 of {_quote(name)}', entry[1], _CRC)
    above = name
    while '/' in above:
      above = above.rpartition('/')[0]
      if above in files:
        raise ValueError(f'{_quote(above)} is both a file and a directory')


def _check_rows(rows: object, step: int) -> dict:
  _require_mapping('rows', rows)
  rows = _ROW_DEFAULTS | rows
  _require_choice('rows.kind', rows.get('kind'), ('base', 'delta'))
  parents = rows.get('parents')
  if type(parents) is not list:
    _refuse('rows.parents', parents, 'a list')
  before = -1
  for parent in parents:
    if type(parent) is not list or len(parent) != 2:
      _refuse('a parent', parent, '[step, identity]')
    _require_number('the step of a parent', parent[0], step - 1, before + 1)
    _require_number('the identity of a parent', parent[1], _CRC)
    before = parent[0]
  if (rows['kind'] == 'base') != (not parents):
    raise ValueError(f'a {rows["kind"]} needs {len(parents)} other steps')
  if type(rows['history']) is not list:
    _refuse('rows.history', rows['history'], 'a list')
  for size in rows['history']:
    if type(size) not in (int, float) or not 0 <= size < math.inf:
      _refuse('a size of rows.history', size, 'a positive number')
  _require_number('rows.bits', rows['bits'], 32, least=1)
  _require_text('rows.method', rows['method'])
  _require_text('rows.slots', rows['slots'])
  return rows | {'tables': check_tables(rows.get('tables'))}


def _check_digests(body: dict) -> None:
  _require_mapping('sha256', body['sha256'])
  if body['sha256'].keys() != body['files'].keys():
    raise ValueError('sha256 has other names than files')
  for digest in [body['hmac'], *body['sha256'].values()]:
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
      _refuse('a digest', digest, '64 hexadecimal digits')


def _check_dtype(where: str, name: object) -> None:
  if isinstance(name, str) and _DTYPE.fullmatch(name):
    try:
      dtype = np.dtype(name)
      if not dtype.hasobject and dtype.kind in 'fiuV' and dtype.itemsize:
        return
    except TypeError:
      pass
  _refuse(where, name, 'a dtype of numbers')


def _require_number(
  where: str, value: object, most: int = _LARGEST, least: int = 0
) -> None:
  if type(value) is not int or not least <= value <= most:
    _refuse(where, value, f'a whole number from {least} to {most}')


def _require_mapping(where: str, value: object) -> None:
  if type(value) is not dict:
    _refuse(where, value, 'an object')


def _require_text(where: str, value: object) -> None:
  if not isinstance(value, str) or len(value) > 1000 or not value.isprintable():
    _refuse(where, value, 'a short text')


def _require_choice(where: str, value: object, options: Collection) -> None:
  if not isinstance(value, str) or value not in options:
    _refuse(where, value, f'one of {", ".join(options)}')


def _refuse(where: str, value: object, wanted: str) -> None:
  raise ValueError(f'{where} is {_quote(value)}, not {wanted}')


def _quote(value: object) -> str:
  return reprlib.repr(value)[:200]
