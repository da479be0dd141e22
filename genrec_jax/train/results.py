"""Results of a run: the report at its end, an evaluation afterwards."""

import importlib.metadata
import logging
import math
import pathlib
import platform
import time

import jax

from genrec_jax import provenance
from genrec_jax.checkpoint import workdir as workdir_lib
from genrec_jax.contracts import Extensions, TaskKind, TaskKinds, kind_of
from genrec_jax.last_resort import print_result
from genrec_jax.parallel import job
from genrec_jax.report import summary
from genrec_jax.report.metric_writers import (
  describe_hole,
  dump_json,
  read_jsonl,
  write_atomically,
)
from genrec_jax.serve.weights import choose_checkpoint, load_weights
from genrec_jax.train import experiment as experiment_lib
from genrec_jax.train import run_facts, tower_choice
from genrec_jax.train.health import describe_divergence
from genrec_jax.train.settings_checks import warn_of_undefined

LOG = logging.getLogger('genrec_jax')
PACKAGES = 'jax jaxlib flax optax orbax-checkpoint grain numpy'.split()


def package_versions() -> dict[str, str]:
  """Versions of Python and of what the numbers depend on."""
  names = {'python': platform.python_version()}
  for package in PACKAGES:
    names[package] = importlib.metadata.version(package)
  return names


def write_results(
  config, workdir, experiment, evaluators, host, step, kind: TaskKind
) -> dict:
  """Writes report.json and report.html, prints the table.

  Args:
    config: of the run.
    workdir: where the report goes.
    experiment: what was trained.
    evaluators: split -> evaluator.
    host: what the loop remembers.
    step: the last one.
    kind: of the task, whose panels the report has.
  """
  workdir = pathlib.Path(workdir)
  splits = [p for p in evaluators if p in host['last']]
  last = {p: host['last'][p] for p in splits}
  chosen = host['best']['metrics'] if host['best'] else last
  values, notes = _describe_data(experiment.data)
  diverged = host['health']['diverged']
  if diverged:
    notes.append(describe_divergence(diverged))
  notes += map(describe_hole, host['curve_holes'])
  if host['best'] is None:
    why, validates = 'No validation split', evaluators.get('valid')
    if 'valid' in last and not getattr(validates, 'chooses', True):
      why = (
        'The validation split is not learned from, and measured once, with the '
        'weights of the end of the training; it chooses no step'
      )
    elif 'valid' in last:
      why = f'No step is the best by {config.train.monitor}'
      undefined = getattr(validates, 'undefined', {})
      if causes := set(undefined.values()):
        why += f' ({"; ".join(sorted(causes))})'
    notes.append(f'{why}: the metrics are those of the last evaluation.')
  if host['stopped_early']:
    notes.append(
      f'Stopped early: {config.train.patience} evaluations without a better '
      f'{config.train.monitor}.'
    )
  notes += _collect_notes(evaluators)
  intervals = host['intervals'].get('best' if host['best'] else 'last', {})
  unit = getattr(experiment.task, 'example_unit', 'examples')
  report = {
    'config': provenance.mask_all(config.to_dict()),
    'run': run_facts.describe_run(config, workdir, host, kind),
    'seed': config.seed,
    'data': experiment.data.summary(),
    **values,
    'metrics': {p: chosen[p] for p in splits},
    'intervals': _fit_intervals(intervals, chosen, splits),
    'last_epoch': last,
    'baselines': experiment.baselines({p: evaluators[p] for p in splits}),
    'parameters': experiment.parameters(),
    'best_step': host['best']['step'] if host['best'] else host['last']['step'],
    'steps': step,
    'wall_s': host['train_s'] + host['eval_s'],
    'core_s': host['train_core_s'] + host['eval_core_s'],
    'train_core_s': host['train_core_s'],
    'eval_core_s': host['eval_core_s'],
    **{k: host[k] for k in ('setup_s', 'train_s', 'eval_s', 'compile_s')},
    'peak_memory': run_facts.describe_memory(),
    f'{unit}_per_s': host['examples'] / max(host['train_s'], 1e-9),
    'devices': describe_devices(),
    'versions': package_versions(),
    'directions': _collect_directions(evaluators),
    'curve_holes': host['curve_holes'],
    'notes': notes,
  }
  if diverged:
    report['diverged'] = diverged
  if towers := getattr(experiment.task, 'describe_towers', str)():
    report['towers'] = towers
  if experiment.task.progress_unit == 'tokens':
    report['tokens_per_s'] = host['tokens'] / max(host['train_s'], 1e-9)

  # All processes: a checkpoint is loaded by all or none.
  sections = []
  for panel in kind.panels if splits else ():
    report[panel.name] = panel.measure(config, workdir, experiment)
    if panel.draw:
      sections.append(panel.draw(report[panel.name]))
  if not splits:
    LOG.info('nothing was evaluated (eval.splits), so there is no report')
  else:
    with job.fail_together('writing the report'):
      if job.is_leader():
        curves = read_jsonl(workdir / 'metrics.jsonl')
        summary.write_report(workdir, report, curves, sections)
        print_result(summary.format_table(report))
        LOG.info('report: %s', workdir / 'report.html')
  if diverged and job.is_leader():  # the last line is what people read
    LOG.warning('%s', notes[0])
  return report


def evaluate_run(
  config, workdir, kinds: TaskKinds, extensions: Extensions | None = None
) -> dict:
  """Evaluates a checkpoint beside popularity; `--mode=eval`.

  Prints the table and writes eval.json, in place of a former one; nothing else
  of the workdir changes.

  Args:
    config: the config of the run; its `eval` section may differ.
    workdir: of the run.
    kinds: the kinds of tasks there are.
    extensions: what is used from outside the library.

  Returns:
    What eval.json holds: {'step', 'checkpoint', 'metrics', 'baselines', ...},
    metrics and baselines as in report.json.
  """
  workdir = pathlib.Path(workdir)
  workdir_lib.check_trained(workdir, config, kind_of(config, kinds).defaults)
  # The workdir is enough: a file of towers is needed once.
  config = tower_choice.keep_towers(config, workdir)
  experiment = experiment_lib.build_experiment(
    config, workdir, kinds, LOG.info, extensions, trains=False
  )
  if experiment.fingerprint() != experiment.data.read_fingerprint(workdir):
    raise ValueError(
      f'the workdir {workdir} was trained on other data than data.path '
      f'({config.data.path!r}) holds now'
    )
  evaluators = experiment.evaluators(config)
  if not evaluators:
    raise ValueError(
      f'eval.splits is {tuple(config.eval.splits)}; this split has '
      f'{", ".join(experiment.data.splits)}'
    )
  weights = load_weights(
    workdir,
    experiment.task,
    choose_checkpoint(config),
    experiment.extensions,
    experiment.runtime,
    config.numerics.rows,
  )
  formats = run_facts.describe_formats(config, experiment)
  LOG.info('weights of step %d%s', weights.step, formats)
  evaluators = {
    split: evaluator
    for split, evaluator in evaluators.items()
    if getattr(evaluator, 'is_due', lambda step: True)(weights.step)
  }
  warn_of_undefined(evaluators)
  wall, core = time.monotonic(), time.process_time()
  metrics = {split: dict(e.run(weights)) for split, e in evaluators.items()}
  wall, core = time.monotonic() - wall, time.process_time() - core
  values, notes = _describe_data(experiment.data)
  intervals = {s: getattr(e, 'intervals', {}) for s, e in evaluators.items()}
  by_part = {
    'config': provenance.mask_all(config.to_dict()),
    'seed': config.seed,
    'data': experiment.data.summary(),
    **values,
    'checkpoint': config.predict.checkpoint,
    'step': weights.step,
    'metrics': metrics,
    'intervals': _fit_intervals(intervals, metrics, metrics),
    'baselines': experiment.baselines(evaluators),
    'wall_s': wall,
    'core_s': core,
    'directions': _collect_directions(evaluators),
    'notes': [*notes, *_collect_notes(evaluators)],
    'devices': describe_devices(),
    'versions': package_versions(),
  }
  with job.fail_together('writing the evaluation'):
    if job.is_leader():
      text = dump_json(by_part, indent=2) + '\n'
      path = workdir / 'eval.json'
      former = ', in place of the former' if path.exists() else ''
      write_atomically(path, text)
      print_result(summary.format_table(by_part))
      LOG.info('evaluation: %s%s', path, former)
  return by_part


def _describe_data(data) -> tuple[dict, list[str]]:
  """'values' and 'splits' of a report, where data count them, and notes.

  `describe_values()` of such data gives split -> feature -> counts, as
  report.json holds them, and sentences that the report shall warn with;
  `describe_splits()` the same of split -> counts of the whole split.
  """
  described, notes = {}, []
  for name in ('values', 'splits'):
    if hasattr(data, f'describe_{name}'):
      counts, texts = getattr(data, f'describe_{name}')()
      described |= {name: counts} if counts else {}
      notes += texts
  return described, notes


def _fit_intervals(intervals, metrics, splits) -> dict:
  """The intervals of these metrics; none of what was measured otherwise."""
  return {
    split: {
      name: [low, high]
      for name, (low, high) in intervals.get(split, {}).items()
      if low <= metrics[split].get(name, math.nan) <= high
    }
    for split in splits
  }


def _collect_directions(evaluators) -> dict:
  """Metric or family -> its direction, of all evaluators."""
  directions = {}
  for evaluator in evaluators.values():
    directions |= getattr(evaluator, 'directions', {})
  return directions


def _collect_notes(evaluators) -> list[str]:
  """What readers of the metrics must know, each sentence once."""
  notes = [n for e in evaluators.values() for n in getattr(e, 'notes', ())]
  return list(dict.fromkeys(notes))


def describe_devices() -> str:
  """How many devices of which kind."""
  return f'{jax.device_count()} x {jax.devices()[0].device_kind}'
