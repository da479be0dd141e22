"""Writes what a benchmark measured: benchmarks/results/<machine>/<name>.json.

`<machine>` is a kind of machine (`cpu2`, `h200`), never a host name. A row is
one measured case; units stand in its keys (`_ms`, `_core_s`, `_bytes`,
`_tflops`, `_x` for ratios).
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import resource
import shlex
import sys
import time

RESULTS = pathlib.Path(__file__).parent / 'results'
PACKAGES = (
  'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy',
  'triton', 'jax-triton',
)  # fmt: skip


def write(
  name: str,
  rows: list[dict],
  *,
  machine: str | None = None,
  notes: str | list[str] | None = None,
  merge: bool = False,
  results: str | os.PathLike = RESULTS,
) -> pathlib.Path:
  """Writes the rows of benchmark `name` and returns the file's path.

  Args:
    name: name of the file, that of the benchmark's module as a rule.
    rows: one dict a measured case; rows may differ in their keys.
    machine: kind of machine; found out when None.
    notes: what a reader of the figures must know.
    merge: replace, in a file that is there, only the rows with the same value
      of the key `case`. Rows that stay carry the command, date, cpu and
      versions they were measured with where those differ.
    results: directory of all results.
  """
  machine = machine or machine_kind()
  path = pathlib.Path(results) / machine / f'{name}.json'
  new = {
    'name': name,
    'command': command(),
    'date': datetime.date.today().isoformat(),
    'machine': machine,
    'cpu': cpu_model(),
    'versions': versions(),
    'rows': list(rows),
  }
  if notes:
    new['notes'] = [notes] if isinstance(notes, str) else list(notes)
  if merge:
    _cases(name, new['rows'])
    if path.exists():
      _merge(json.loads(path.read_text()), new)
  path.parent.mkdir(parents=True, exist_ok=True)
  text = json.dumps(new, indent=1, ensure_ascii=False, default=_number)
  temporary = path.with_suffix('.tmp')
  temporary.write_text(text + '\n')
  os.replace(temporary, path)
  return path


class CoreTimer:
  """Measures processor time: of this process and of children that ended.

    with CoreTimer() as timer:
      jax.block_until_ready(step(state, batch))
    print(timer.core_s, timer.wall_s)

  Inside the context both are the seconds so far.
  """

  def __enter__(self) -> 'CoreTimer':
    self._end = None
    self._begin = self._now()
    return self

  def __exit__(self, *exc_info) -> None:
    self._end = self._now()

  @property
  def wall_s(self) -> float:
    return (self._end or self._now())[0] - self._begin[0]

  @property
  def core_s(self) -> float:
    return (self._end or self._now())[1] - self._begin[1]

  @staticmethod
  def _now() -> tuple[float, float]:
    # As os.times, which counts in hundredths of a second only.
    core_s = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
      used = resource.getrusage(who)
      core_s += used.ru_utime + used.ru_stime
    return time.perf_counter(), core_s


def machine_kind() -> str:
  """Returns 'cpu2', 'h200', 'h200x8', 'tpu_v5_lite', ...: JAX's devices."""
  cpu = f'cpu{len(os.sched_getaffinity(0))}'
  try:
    import jax
  except ImportError:  # code_shape runs with any Python
    return cpu
  devices = jax.devices()
  if devices[0].platform == 'cpu':  # JAX may pretend to have more devices
    return cpu
  kind = accelerator_kind(devices[0].device_kind)
  return kind if len(devices) == 1 else f'{kind}x{len(devices)}'


def accelerator_kind(device_kind: str) -> str:
  """Short name of a device.

  >>> accelerator_kind('NVIDIA A100-SXM4-80GB')
  'a100'
  """
  words = re.split(r'[\s\-_/]+', device_kind.lower())
  words = [w for w in words if w not in ('nvidia', 'amd', 'geforce', 'tesla')]
  form = re.compile(r'\d+gb|sxm\d*|pcie|nvl|hbm\w*')
  return '_'.join(w for w in words if not form.fullmatch(w)) or 'unknown'


def cpu_model() -> str:
  """Returns the processor's name."""
  try:
    found = re.search(
      r'^model name\s*:\s*(.+)$',
      pathlib.Path('/proc/cpuinfo').read_text(),
      re.MULTILINE,
    )
  except OSError:
    found = None
  return found[1].strip() if found else platform.processor() or 'unknown'


def versions() -> dict[str, str]:
  """Returns the versions of Python and of the packages a figure depends on."""
  found = {'python': platform.python_version()}
  for package in PACKAGES:
    try:
      found[package] = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
      continue
  return found


def command() -> str:
  """Returns the command that runs this process again, in the checkout.

  Absolute paths, which mean something on one machine only, are shortened.
  """
  program = pathlib.Path(sys.argv[0] or 'python')
  if program.suffix == '.py':
    here = pathlib.Path(__file__).parent
    package = 'benchmarks.' if program.resolve().parent == here else ''
    words = ['python', '-m', package + program.stem]
  else:
    words = [program.name]
  data = os.environ.get('GENREC_DATA')
  for word in sys.argv[1:]:
    word = word.replace(os.getcwd() + '/', '')
    if data:
      word = word.replace(data.rstrip('/'), '$GENREC_DATA')
    words.append(re.sub(r'(?<![\w.])/(?:[^/\s=,]+/)+', '.../', word))
  return ' '.join(w if '$' in w else shlex.quote(w) for w in words)


def _cases(name: str, rows: list[dict]) -> dict[object, dict]:
  cases = {}
  for row in rows:
    if 'case' not in row:
      raise ValueError(f'{name}: merge needs the key "case" in each row: {row}')
    if row['case'] in cases:
      raise ValueError(f'{name}: two rows have the case {row["case"]!r}.')
    cases[row['case']] = row
  return cases


def _merge(old: dict, new: dict) -> None:
  """Puts the rows of `old` that were not measured again into `new`."""
  fresh = _cases(new['name'], new['rows'])
  rows = []
  for case, row in _cases(old['name'], old['rows']).items():
    if case in fresh:
      rows.append(fresh.pop(case))
      continue
    for key in ('command', 'date', 'cpu', 'versions'):
      if old[key] != new[key]:
        row.setdefault(key, old[key])
    rows.append(row)
  new['rows'] = rows + list(fresh.values())
  if 'notes' in old:
    new.setdefault('notes', old['notes'])


def _number(value: object) -> object:
  if hasattr(value, 'tolist'):  # NumPy and JAX
    return value.tolist()
  raise TypeError(f'{value!r} cannot be written as JSON.')
