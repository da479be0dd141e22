"""`genrec learn_hash`: learns which ids share a row, and trains with that.

    WORKDIR/
      data/            the prepared data, unless data.cache says where
      small/           a run of the same model with narrow tables
      whole/           a run with a row for each id, with `hash.compare`
      private_0.50/    a run with maps in which frequent ids have half the rows
        maps/NAME.npz
        report.html ...
      config.json      what was asked for
      hash.json        what was measured, and the best run

Whoever is interrupted goes on with the same command: a run that has ended is
read and not trained again. Counts and vectors are of the training split alone.
With `hash.renew_every`, `hash_phases` does it, and has other directories.
"""

import json
import logging
import pathlib
from collections.abc import Mapping

import numpy as np

from genrec_jax import config as config_lib
from genrec_jax.contracts import Extensions, TaskKinds
from genrec_jax.parallel import job
from genrec_jax.processes.whole_files import replace_file
from genrec_jax.train import hash_phases, hash_tables, series

LOG = logging.getLogger('genrec_jax')


def learn_hash(
  config,
  workdir,
  kinds: TaskKinds,
  extensions: Extensions | None = None,
) -> str:
  """Learns maps as `config.hash` says, and trains with them.

  Args:
    config: of the experiment.
    workdir: where all of it lies.
    kinds: the kinds of tasks there are.
    extensions: what is used from outside the library.

  Returns:
    What was measured, as text; '' where SIGTERM has ended it early.
  """
  workdir = pathlib.Path(workdir)
  if 'hash' not in config:
    raise config_lib.ConfigError(
      f'learn_hash is for task=ranking, and the task is {config.task!r}; '
      'docs/learned_hash.md says how a map is made from vectors in Python'
    )
  with series.take_workdir(workdir, config, 'learn_hash'):
    return _learn_locked(config, workdir, kinds, extensions)


def _learn_locked(config, workdir, kinds, extensions) -> str:
  asked = config.hash.to_dict()
  cache = config.data.cache or str((workdir / 'data').resolve())
  plain = series.change_config(config, **{'data.cache': cache})
  data, task = hash_tables.load_data_and_task(plain, workdir, kinds, extensions)
  tables = hash_tables.choose_tables(
    config, task, data.dataset.encoder.vocabularies
  )
  if asked['renew_every']:
    return hash_phases.Phases(
      plain, asked, workdir, data, task, tables, kinds, extensions
    ).run()
  vectors = None
  if asked['method'] != 'frequency':
    vectors = _find_vectors(plain, asked, workdir, kinds, extensions, tables)
    if vectors is None:
      return ''
  counts = hash_tables.read_counts(data.dataset, tables)
  trials = {}
  for share in hash_tables.list_shares(asked):
    own = name_trial(workdir, share)
    maps = {n: hash_tables.name_map(own / 'maps', n) for n in tables}
    with job.fail_together('learning the maps', lead_first=True):
      for name, path in maps.items():  # which the other processes find
        table, near = tables[name], vectors and vectors[name]
        hash_tables.learn_map(path, table, counts[name], near, asked, share)
    with_maps = hash_tables.set_maps(plain, task, tables, maps)
    report = series.train_once(with_maps, own, kinds, extensions)
    if report is None:  # stopped; the same command goes on
      return ''
    trials[share] = report['metrics']
  best = series.choose_best(trials, config)
  found = _summarize(workdir, asked, tables, trials, best)
  if asked['compare']:
    report = series.train_once(plain, workdir / 'whole', kinds, extensions)
    if report is None:
      return ''
    found['whole'] = report['metrics']
  if job.is_leader():
    replace_file(workdir / hash_tables.RESULT, json.dumps(found, indent=2))
  return _describe(found, trials, best)


def _find_vectors(
  config, asked, workdir, kinds, extensions, tables
) -> dict[str, np.ndarray] | None:
  """Table -> vectors of its ids, of a small run; None: stopped."""
  folder = pathlib.Path(asked['vectors'] or workdir / 'small')
  if asked['vectors']:
    of_run = config_lib.load_saved(folder / 'config.json')
  else:
    of_run = series.change_config(config, **{'model.dim': asked['dim']})
    LOG.info('vectors: a small model, %d wide', asked['dim'])
    if series.train_once(of_run, folder, kinds, extensions) is None:
      return None
  of_run = series.change_config(of_run, **{'data.cache': config.data.cache})
  return hash_tables.read_vectors(folder, of_run, tables, kinds, extensions)


def _summarize(workdir, asked, tables, trials, best) -> dict:
  return {
    'hash': dict(asked),
    'tables': hash_tables.measure_sizes(tables),
    'trials': {_name_share(share): found for share, found in trials.items()},
    'best': str(name_trial(workdir, best)),
  }


def name_trial(workdir: pathlib.Path, share: float) -> pathlib.Path:
  """The directory of the run in which frequent ids have that share of rows."""
  return workdir / f'private_{_name_share(share)}'


def _name_share(share: float) -> str:
  """Two digits, or as many as part it from others.

  >>> _name_share(0.5), _name_share(0.0), _name_share(0.504)
  ('0.50', '0.00', '0.504')
  """
  short = f'{share:.2f}'
  return short if float(short) == share else f'{share:.10g}'


def _describe(found: Mapping, trials: Mapping[float, Mapping], best) -> str:
  """What `genrec learn_hash` prints."""
  runs = {'a row for each': found['whole']} if 'whole' in found else {}
  for share, splits in trials.items():
    mark = ' (best)' if share == best and len(trials) > 1 else ''
    runs[f'{100 * share:.10g}%{mark}'] = splits
  return '\n'.join([
    *hash_tables.describe_sizes(found['tables']),
    '',
    *hash_tables.describe_metrics('rows of one id', runs),
    '',
    found['best'],
  ])  # fmt: skip
