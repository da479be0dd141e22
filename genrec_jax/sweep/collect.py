"""One table of all runs of a sweep: what varies, what they reach and cost.

It can be made at any time, also while runs go on, and is written as sweep.csv,
sweep.html and, where pyarrow is installed, sweep.parquet.
"""

import csv
import io
import pathlib
from collections.abc import Mapping, Sequence

from genrec_jax import formatting
from genrec_jax.checkpoint.inspect_text import format_columns
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.sweep import page
from genrec_jax.sweep.record import Sweep
from genrec_jax.sweep.results import Collection, read_results
from genrec_jax.sweep.variants import shorten_keys

_COSTS = ('wall_s', 'core_s', 'train_core_s', 'examples_per_s', 'tokens_per_s')
_SHOWN = 5  # of the best, in the text


def collect_sweep(sweep: Sweep) -> str:
  """Writes the table and the page of a sweep; returns what a person reads."""
  found = read_results(sweep)
  rows = list_rows(found)
  written = [sweep.root / 'sweep.csv', sweep.root / 'sweep.html']
  replace_file(written[0], write_csv(rows).rstrip('\n'))
  replace_file(written[1], page.render_sweep(found))
  if path := write_parquet(rows, sweep.root / 'sweep.parquet'):
    written.append(path)
  return f'{summarize(found)}\n' + ' '.join(map(str, written))


def list_rows(found: Collection) -> list[dict[str, object]]:
  """The table: one dictionary a run, with equal keys."""
  metrics = found.metrics()
  several = found.monitor is not None and not found.metric
  rows = []
  for result in found.results:
    note = result.note
    row = {
      'number': result.variant.number,
      'name': result.variant.name,
      'state': result.state,
      **{key: result.keys.get(key) for key in found.keys},
      # A monitor of several metrics is none of the columns behind.
      **({'monitored': found.value(result)} if several else {}),
      'best_step': result.best_step,
      'last_step': result.curve.last_step or None,
      **{name: result.best.get(name) for name in metrics},
      **{f'last {name}': result.last.get(name) for name in metrics},
      **{name: result.cost(name) for name in _COSTS},
      'peak_bytes': note.peak_bytes
      or (result.report.get('peak_memory') or {}).get('host'),
      'tries': note.tries or None,
      'status': note.status,
      'why': note.why or None,
    }
    rows.append(row)
  return rows


def write_csv(rows: Sequence[Mapping]) -> str:
  """The table as CSV; what is not known is empty."""
  out = io.StringIO()
  writer = csv.DictWriter(out, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  for row in rows:
    writer.writerow({k: '' if v is None else v for k, v in row.items()})
  return out.getvalue()


def write_parquet(
  rows: Sequence[Mapping], path: pathlib.Path
) -> pathlib.Path | None:
  """The table as Parquet; None where pyarrow is not installed."""
  try:
    import pyarrow as pa
    import pyarrow.parquet as pq
  except ImportError:
    return None
  columns = {}
  for name in rows[0]:
    values = [row[name] for row in rows]
    kinds = {type(v) for v in values if v is not None}
    if kinds == {int, float}:
      values = [None if v is None else float(v) for v in values]
    elif len(kinds) > 1:  # 'auto' beside numbers
      values = [None if v is None else str(v) for v in values]
    # A column keeps its type while nothing of it is known.
    unknown = None if kinds else pa.string() if name == 'why' else pa.float64()
    columns[name] = pa.array(values, unknown)
  temporary = path.with_name(f'.{path.name}')
  pq.write_table(pa.table(columns), temporary)
  temporary.replace(path)
  return path


def summarize(found: Collection) -> str:
  """The best runs, as lines of text."""
  counts = found.count_states()
  lines = [', '.join(f'{n} {state}' for state, n in counts.items())]
  ranked = found.rank()[:_SHOWN]
  if ranked:
    short = shorten_keys(found.keys)
    metrics = found.metrics()[:4]
    several = [] if found.metric else ['monitored']
    header = ['best', *(short[k] for k in found.keys), *several, *metrics]
    cells = [
      [
        f'{r.variant.number:03d}',
        *(str(r.keys.get(k, '')) for k in found.keys),
        *(formatting.format_number(found.value(r)) for _ in several),
        *(formatting.format_number(r.best.get(m)) for m in metrics),
      ]
      for r in ranked
    ]
    lines += format_columns([f'<{title}' for title in header], cells)
  return '\n'.join(lines)
