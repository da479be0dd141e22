"""Writes the tables of README.md and other pages from benchmarks/results.

  python -m benchmarks.tables           # rewrites what differs
  python -m benchmarks.tables --check   # exit status 1 when something differs

A page says where table NAME goes:

  <!-- table:NAME -->
  <!-- /table -->

Everything between the two lines is generated; do not edit it by hand.
"""

import argparse
import difflib
import json
import pathlib
import re
import sys

from benchmarks.tables_checkpoint import CHECKPOINT
from benchmarks.tables_compact import COMPACT
from benchmarks.tables_dmt import DMT
from benchmarks.tables_exfm import EXFM
from benchmarks.tables_generative import GENERATIVE
from benchmarks.tables_gpu import GPU
from benchmarks.tables_kernels import KERNELS
from benchmarks.tables_launching import LAUNCHING
from benchmarks.tables_meaning import MEANING
from benchmarks.tables_numerics import NUMERICS
from benchmarks.tables_ranking import RANKING
from benchmarks.tables_requests import REQUESTS
from benchmarks.tables_robustness import ROBUSTNESS
from benchmarks.tables_scale_out import SCALE_OUT
from benchmarks.tables_structure import STRUCTURE
from benchmarks.tables_tbsm import TBSM

ROOT = pathlib.Path(__file__).parent.parent
PAGES = ('README.md', 'docs/*.md', 'benchmarks/README.md')

# NAME -> files: results it reads, `machine/name`, in the order of the rows;
#         columns: (header, key, format). The key is one of a row or of the
#           file (machine, command, date). The format is a format spec such as
#           ',.0f' or '.4f', 'MB' for bytes, or '' for text; a row without the
#           key shows a dash.
#         where: optional, key -> value or tuple of values of the rows shown.
#         names: optional, case -> what a row is called, as its key `name`; only
#           these cases are shown.
TABLES = {
  'summary': {
    'files': ('cpu2/ml1m', 'cpu2/frappe'),
    'names': {
      'sasrec_ml1m': 'SASRec on MovieLens-1M, whole catalogue ranked',
      'hstu_ml1m': 'HSTU on MovieLens-1M, whole catalogue ranked',
      'dlrm': 'DLRM on Frappe',
      'dcn': 'DCN-V2 on Frappe',
      'finalmlp': 'FinalMLP on Frappe',
      'wukong': 'Wukong (one layer, static Y, batch norm) on Frappe',
    },
    'columns': (
      ('model and data', 'name', ''),
      ('seeds', 'seeds', 'd'),
      ('HR@10', 'hr@10', '.4f'),
      ('±', 'hr@10_std', '.4f'),
      ('published', 'published_hr@10', '.4f'),
      ('NDCG@10', 'ndcg@10', '.4f'),
      ('±', 'ndcg@10_std', '.4f'),
      ('published', 'published_ndcg@10', '.4f'),
      ('AUC', 'auc', '.4f'),
      ('±', 'auc_std', '.4f'),
      ('published', 'published_auc', '.4f'),
      ('core-seconds', 'core_s', ',.0f'),
    ),
  },
  'ml1m': {
    'files': ('cpu2/ml1m',),
    'columns': (
      ('config', 'config', ''),
      ('seed', 'seed', 'd'),
      ('mean of seeds', 'seeds', 'd'),
      ('epoch chosen by', 'chosen_by', ''),
      ('HR@10', 'hr@10', '.4f'),
      ('±', 'hr@10_std', '.4f'),
      ('published', 'published_hr@10', '.4f'),
      ('NDCG@10', 'ndcg@10', '.4f'),
      ('±', 'ndcg@10_std', '.4f'),
      ('published', 'published_ndcg@10', '.4f'),
      ('HR@50', 'hr@50', '.4f'),
      ('HR@200', 'hr@200', '.4f'),
      ('HR@10, last epoch', 'last_hr@10', '.4f'),
      ('NDCG@10, last epoch', 'last_ndcg@10', '.4f'),
      ('best step', 'best_step', ',d'),
      ('steps', 'steps', ',d'),
      ('core-seconds', 'core_s', ',.0f'),
    ),
  },
  'quality_vs_cost': {
    'files': ('cpu2/quality_vs_cost',),
    'columns': (
      ('run', 'run', ''),
      ('share of the run', 'of_run', '.0%'),
      ('core-seconds of training', 'train_core_s', ',.0f'),
      ('test HR@10', 'hr@10', '.4f'),
      ('test NDCG@10', 'ndcg@10', '.4f'),
    ),
    'where': {'kind': 'shown'},
  },
  'request_time': {
    'files': ('cpu2/request_time',),
    'columns': (
      ('asked at the time of the', 'case', ''),
      ('seeds', 'seeds', 'd'),
      ('HR@10', 'hr@10', '.4f'),
      ('±', 'hr@10_std', '.4f'),
      ('NDCG@10', 'ndcg@10', '.4f'),
      ('±', 'ndcg@10_std', '.4f'),
      ('MRR', 'mrr', '.4f'),
      ('±', 'mrr_std', '.4f'),
    ),
  },
  'synthetic_stream': {
    'files': ('cpu2/synthetic_stream',),
    'columns': (
      ('model', 'model', ''),
      ('seeds', 'seeds', 'd'),
      ('HR@10', 'hr@10', '.4f'),
      ('±', 'hr@10_std', '.4f'),
      ('HR@50', 'hr@50', '.4f'),
      ('±', 'hr@50_std', '.4f'),
      ('NDCG@10', 'ndcg@10', '.4f'),
      ('±', 'ndcg@10_std', '.4f'),
      ('seeds ahead of the next row', 'above_next', ''),
      ('paper, 20 times the records: HR@10', 'paper_hr@10', '.4f'),
      ('HR@50', 'paper_hr@50', '.4f'),
    ),
    'where': {'kind': 'mean'},
  },
  'train_step': {
    'files': ('cpu2/train_step',),
    'columns': (
      ('model', 'model', ''),
      ('data', 'data', ''),
      ('tokens', 'tokens', ',d'),
      ('core-seconds (median)', 'core_s', '.2f'),
      ('least', 'min_core_s', '.2f'),
      ('wall seconds', 'wall_s', '.2f'),
      ('compile, core-seconds', 'compile_core_s', '.1f'),
      ('peer, core-seconds', 'peer_core_s', '.2f'),
      ('peer / ours', 'peer_x', '.2f'),
    ),
    'where': {'part': 'step'},
  },
  'train_step_parts': {
    'files': ('cpu2/train_step',),
    'columns': (
      ('model', 'model', ''),
      ('part', 'part', ''),
      ('tokens', 'tokens', ',d'),
      ('core-seconds (median)', 'core_s', '.3f'),
      ('least', 'min_core_s', '.3f'),
      ('wall seconds', 'wall_s', '.3f'),
    ),
  },
  'eval_catalogue': {
    'files': ('cpu2/eval_catalogue',),
    'columns': (
      ('model', 'model', ''),
      ('filtered items', 'filter', ''),
      ('core-seconds', 'core_s', '.2f'),
      ('encoding', 'encode_core_s', '.2f'),
      ('ranking', 'rank_core_s', '.2f'),
      ('training epoch, core-seconds', 'epoch_core_s', '.1f'),
      ('evaluation / epoch', 'eval_of_epoch_x', '.2f'),
      ('ranking holds, MB', 'rank_bytes', 'MB'),
      ('users x items, MB', 'users_x_items_bytes', 'MB'),
      ('peer, core-seconds', 'peer_core_s', '.1f'),
      ('peer / ours', 'peer_x', '.1f'),
    ),
  },
  'out_of_core': {
    'files': ('cpu2/out_of_core',),
    'columns': (
      ('events', 'events', ',d'),
      ('stage', 'stage', ''),
      ('log, MB', 'log_bytes', 'MB'),
      ('item table, MB', 'table_bytes', 'MB'),
      ('anonymous, MB', 'peak_anon_bytes', 'MB'),
      ('of which to open and split', 'split_anon_bytes', 'MB'),
      ('file-mapped, MB', 'peak_file_bytes', 'MB'),
      ('events/s', 'events_per_s', ',.0f'),
      ('tokens per step', 'tokens_per_step', ',.0f'),
      ('steps/s', 'steps_per_s', '.1f'),
    ),
  },
  'mutation': {
    'files': ('cpu2/mutation',),
    'columns': (
      ('mutants', 'mutants', 'd'),
      ('killed', 'killed', 'd'),
      ('out of time', 'timeout', 'd'),
      ('survived', 'survived', 'd'),
      ('equivalent', 'equivalent', 'd'),
      ('score', 'score', '.0%'),
    ),
    'where': {'case': 'score'},
  },
  'install_size': {
    'files': ('cpu2/install_size',),
    'columns': (
      ('package', 'case', ''),
      ('MB', 'bytes', 'MB'),
      ('share', 'share', '.0%'),
      ('packages', 'packages', 'd'),
      ('bytecode, MB', 'pycache_bytes', 'MB'),
    ),
  },
  'peer_step': {
    'files': ('cpu2/peer_generative_recommenders',),
    'columns': (
      ('model', 'model', ''),
      ('setting', 'setting', ''),
      ('tokens', 'tokens', ',d'),
      ('core-seconds (median)', 'core_s', '.2f'),
      ('least', 'min_core_s', '.2f'),
      ('wall seconds', 'wall_s', '.2f'),
      ('load of the machine', 'load_1min', '.1f'),
    ),
    'where': {'what': 'train_step'},
  },
  'peer_evaluation': {
    'files': ('cpu2/peer_generative_recommenders',),
    'columns': (
      ('model', 'model', ''),
      ('setting', 'setting', ''),
      ('core-seconds', 'core_s', '.1f'),
      ('encoder alone', 'encode_core_s', '.1f'),
      ('wall seconds', 'wall_s', '.1f'),
      ('load of the machine', 'load_1min', '.1f'),
    ),
    'where': {'what': 'evaluation'},
  },
  'peer_parity': {
    'files': ('cpu2/peer_generative_recommenders',),
    'columns': (
      ('model', 'model', ''),
      ('with', 'setting', ''),
      ('AdamW steps', 'steps', 'd'),
      ('losses differ by at most', 'loss_max_abs_diff', '.1e'),
      ('encoder outputs by at most', 'output_max_abs_diff', '.1e'),
    ),
    'where': {'what': 'parity'},
  },
  'weights_parity': {
    'files': ('cpu2/weights_parity',),
    'columns': (
      ('checkpoint', 'case', ''),
      ('arrays', 'arrays', 'd'),
      ('numbers', 'numbers', ',d'),
      ('outputs differ by at most', 'max_difference', '.1e'),
      ('largest output', 'max_output', '.2f'),
      ('scores by at most', 'max_logit_difference', '.1e'),
      ('same best ten', 'same_top_10', '.0%'),
      ('outputs of shorter histories', 'short_max_difference', '.1f'),
      ('commit', 'commit', ''),
      ('peer', 'peer', ''),
    ),
  },
  **SCALE_OUT,
  **RANKING,
  **REQUESTS,
  **MEANING,
  **ROBUSTNESS,
  **CHECKPOINT,
  **STRUCTURE,
  **GENERATIVE,
  **GPU,
  **KERNELS,
  **DMT,
  **EXFM,
  **COMPACT,
  **TBSM,
  **LAUNCHING,
  **NUMERICS,
}

_MARKED = re.compile(
  r'^<!-- table:(?P<name>\S+) -->\n(?P<body>.*?)^<!-- /table -->$',
  re.MULTILINE | re.DOTALL,
)


def main(argv: list[str] | None = None) -> int:
  """Writes or, with --check, compares every page; returns the exit status."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.tables',
    description=__doc__.partition('\n')[0],
  )
  parser.add_argument(
    '--check', action='store_true', help='write nothing; exit 1 if needed'
  )
  check = parser.parse_args(argv).check
  try:
    stale = update(write=not check)
  except ValueError as e:
    print(f'error: {e}', file=sys.stderr)
    return 1
  for page in stale:
    print(f'{page}: {"out of date" if check else "written"}')
  if check and stale:
    print('Run python -m benchmarks.tables.')
  return int(check and bool(stale))


def update(
  *,
  write: bool,
  tables: dict | None = None,
  root: pathlib.Path | None = None,
) -> list[str]:
  """Returns the pages whose tables are out of date, written anew if asked."""
  tables = TABLES if tables is None else tables
  root = root or ROOT
  stale = []
  for path in sorted(p for pattern in PAGES for p in root.glob(pattern)):
    page = str(path.relative_to(root))
    old = path.read_text()
    if len(_MARKED.findall(old)) != len(re.findall(r'<!-- /?table\b', old)) / 2:
      raise ValueError(
        f'{page}: each table needs a line <!-- table:NAME --> and, below it, a'
        ' line <!-- /table -->.'
      )
    try:
      new = _MARKED.sub(
        lambda m: (
          f'<!-- table:{m["name"]} -->\n'
          f'{render(m["name"], tables, root)}'
          '<!-- /table -->'
        ),
        old,
      )
    except ValueError as e:
      raise ValueError(f'{page}: {e}') from e
    if new != old:
      stale.append(page)
      if write:
        path.write_text(new)
  return stale


def render(name: str, tables: dict, root: pathlib.Path) -> str:
  """Returns table `name` as Markdown, with the commands that measured it."""
  if name not in tables:
    near = difflib.get_close_matches(name, tables, n=1)
    hint = f' Did you mean {near[0]!r}?' if near else ''
    raise ValueError(f'There is no table {name!r} in TABLES.{hint}')
  table = tables[name]
  rows = [
    row
    for file in table['files']
    for row in _rows(name, file, root)
    if _wanted(row, table.get('where', {}))
  ]
  if names := table.get('names'):
    rows = [{**r, 'name': names[r['case']]} for r in rows if r['case'] in names]
  if not rows:
    raise ValueError(f'Table {name!r} has no rows.')
  for header, key, _ in table['columns']:
    if not any(key in row for row in rows):
      known = ', '.join(sorted(set().union(*rows)))
      raise ValueError(
        f'No row of table {name!r} has the key {key!r} of column {header!r};'
        f' there are {known}.'
      )
  lines = [
    [header for header, _, _ in table['columns']],
    ['---:' if form else '---' for _, _, form in table['columns']],
    *([_cell(r.get(k), f) for _, k, f in table['columns']] for r in rows),
  ]
  text = ''.join(f'| {" | ".join(line)} |\n' for line in lines)
  sources = dict.fromkeys(
    f'<code>{row["command"]}</code> on {row["machine"]}, {row["date"]}'
    for row in rows
  )
  return f'{text}\n<sub>Measured by {"; ".join(sources)}.</sub>\n'


def _rows(name: str, file: str, root: pathlib.Path) -> list[dict]:
  """The rows of a result file, each with the keys of the file."""
  path = root / 'benchmarks' / 'results' / f'{file}.json'
  if not path.exists():
    raise ValueError(
      f'Table {name!r} reads {path.relative_to(root)}, which is not there. Run'
      ' the benchmark, or take the file out of TABLES.'
    )
  result = json.loads(path.read_text())
  rows = result.pop('rows')
  return [{**result, **row} for row in rows]


def _wanted(row: dict, where: dict) -> bool:
  for key, values in where.items():
    values = values if isinstance(values, tuple) else (values,)
    if row.get(key) not in values:
      return False
  return True


def _cell(value: object, form: str) -> str:
  if value is None:
    return '–'
  if form == 'MB':
    value, form = value / 1e6, ',.1f' if value < 1e7 else ',.0f'
  text = format(value, '' if isinstance(value, str) else form)
  return text.replace('|', '\\|').replace('\n', ' ')


if __name__ == '__main__':
  sys.exit(main())
