"""The training loop.

The order matters and is the same at every step: log, look for NaN, evaluate and
save the present state, and only then take the next batch. When a checkpoint is
made, everything else that belongs to its step is done. A resumed run therefore
does nothing twice, and its curve is that of an uninterrupted run.
"""

import collections
import contextlib
import dataclasses
import io
import logging
import math
import pathlib
import time

import jax

from genrec_jax import config as config_lib
from genrec_jax import interruption
from genrec_jax.checkpoint.workdir import own_workdir
from genrec_jax.checkpoint.workdir_files import list_traces
from genrec_jax.contracts import Extensions, TaskKinds, kind_of, weights_of
from genrec_jax.parallel import job
from genrec_jax.progress import Progress
from genrec_jax.report.metric_writers import (
  MetricWriters,
  NoMetricWriters,
  describe_hole,
)
from genrec_jax.runtime import measurements
from genrec_jax.runtime.compile_clock import watch_compiling
from genrec_jax.runtime.saving import Saver
from genrec_jax.runtime.state import replace_weights
from genrec_jax.tasks import meaning
from genrec_jax.train import experiment as experiment_lib
from genrec_jax.train import (
  map_renewal,
  progressive_validation,
  results,
  stopping,
)
from genrec_jax.train.best_weights import BestWeights
from genrec_jax.train.health import Health
from genrec_jax.train.part_ends import PartEnds
from genrec_jax.train.plateau import lower_rate
from genrec_jax.train.profile import Profile
from genrec_jax.train.programs import ProgramCounter
from genrec_jax.train.renewal import read_rules, renew_evaluations
from genrec_jax.train.run_facts import (
  PhaseClock,
  describe_formats,
  describe_parameters,
)
from genrec_jax.train.settings_checks import (
  check_evaluation,
  check_files,
  check_settings,
  check_unused,
  describe_nan,
  refuse_packed_rows,
)
from genrec_jax.train.workdir_watch import WorkdirWatch
from genrec_jax.weights.start import import_weights

LOG = logging.getLogger('genrec_jax')
STEPS_AHEAD = 2  # of the device
_PROGRESSIVE = ('ne', 'auc')  # shown with the progress, see `eval.progressive`

_REMEDY = (
  'Nothing was saved since then. Use a lower optimizer.learning_rate or set '
  'optimizer.clip_norm, and another --workdir. (In a task or an id map of your '
  'own: an id outside its table reads NaN. With gradients in float16 between '
  'devices: lower parallel.exchange.gradient_scale, or send bfloat16.)'
)

_OVERFLOW = (
  'More rows were asked of a device than parallel.exchange.capacity has room '
  "for. Raise it, or set parallel.exchange.overflow='rounds', which takes "
  'longer in such steps.'
)


class NonFiniteError(FloatingPointError):
  """A measurement stopped being finite; the message names it and the step."""


def train_and_evaluate(
  config,
  workdir,
  kinds: TaskKinds,
  extensions: Extensions | None = None,
) -> dict | None:
  """Trains as `config` says, continuing what `workdir` holds.

  Args:
    config: a `ConfigDict`, see `genrec_jax.config`.
    workdir: directory of the run (see docs/training.md for what is in it).
    kinds: the kinds of tasks there are, `task_kinds.TASK_KINDS` say.
    extensions: what the run uses from outside the library.

  Returns:
    The report (as in report.json), or None if SIGTERM ended the run early; the
    same call continues it. (A command line ends its process then.)

  Raises:
    KeyboardInterrupt: Ctrl-C; the step under way was saved. A second Ctrl-C
      raises it at once.
  """
  workdir = pathlib.Path(workdir)
  check_settings(config, extensions)
  defaults = kind_of(config, kinds).defaults
  continues = bool(list_traces(workdir))
  check_unused(config, continues=continues)
  check_files(config, continues=continues)
  refuse_packed_rows(config)
  with (
    own_workdir(workdir, config, defaults),
    job.all_or_none('training', config.parallel.heartbeat_s),
  ):
    interruption.keep(lambda: stopping.describe_kept(workdir))
    return _train_locked(config, workdir, kinds, extensions)


def _train_locked(
  config, workdir: pathlib.Path, kinds: TaskKinds, extensions: Extensions | None
) -> dict | None:
  # ---- Set up: data and task ------------------------------------------------
  log = LOG.info
  compile_s = watch_compiling()
  clock, started = PhaseClock(), time.time()
  experiment = experiment_lib.build_experiment(
    config, workdir, kinds, log, extensions
  )
  evaluators = experiment.evaluators(config)
  train, runtime = config.train, experiment.runtime
  monitor = check_evaluation(config, evaluators)
  stop = interruption.SafePoints(listen=True)
  source = experiment.train_batches(
    config, lambda: stop.number is not None, log
  )
  batches = runtime.batches(iter(source))
  epoch = experiment.data.steps_per_epoch(train.batch_size)
  total_steps = experiment_lib.total_steps(config, experiment.data)
  programs = ProgramCounter(_expect_programs(config, source, total_steps))
  eval_every = train.eval_every or epoch
  eval_steps = experiment.list_evaluation_steps()
  checkpoint_every = train.checkpoint_every or epoch
  parts = PartEnds(config, batches)
  step_fn = runtime.step()
  progressive = progressive_validation.build_progressive_validation(
    config, experiment.task, runtime, epoch, total_steps
  )
  kinds_of_measurements = measurements.declare_measurements(experiment.task)

  # ---- State: continue or start ---------------------------------------------
  saver = Saver(config, workdir, runtime, experiment.task)
  checkpoints = saver.checkpoints
  best = BestWeights(workdir / 'best', saver.key, saver.split_weights)
  run_values = {
    'data': experiment.fingerprint(),
    'model': meaning.describe_model(experiment.task),
    'best': None,  # {'step', 'value', 'metrics'}
    'last': {},  # split -> metrics of the latest evaluation
    'evaluations_since_best': 0,
    'intervals': {},  # of the metrics of the best step, and of the last
    'started': started,
    'tokens': 0,
    'examples': 0,
    'train_s': 0.0,
    'train_core_s': 0.0,
    'eval_s': 0.0,
    'eval_core_s': 0.0,
    'stopped_early': False,
    'restores': 0,
    'curve': None,  # position in metrics.jsonl
    'curve_holes': [],
    'health': None,  # `Health.values`
    'rules': None,  # of evaluating, see renewal.py
    'plan': runtime.plan and runtime.plan.to_json(),
  }
  state, step, resumed = None, 0, False
  newest = checkpoints.latest(rows_later=True)
  if newest is not None:
    saved = checkpoints.read_manifest(newest)['host'] or {}
    saved_data = saved.get('data')
    if saved_data != experiment.fingerprint():
      raise config_lib.ConfigError(
        f'the workdir {workdir} was trained on other data ({saved_data}, now '
        f'{experiment.fingerprint()}); use another --workdir'
      )
    meaning.check_resumed(workdir, saved.get('model'), experiment.task)
    resume_point = saver.restore(batches)
    step, state, resumed = resume_point.step, resume_point.state, True
    run_values |= resume_point.host | {
      key: run_values[key] for key in ('plan', 'model')
    }
    del resume_point  # which has the state, too
    run_values['restores'] += 1
    run_values['best'] = best.resume_from(run_values['best'])
    saver.note_restore(step)
    state = map_renewal.renew_maps(state, experiment.task, runtime)
    progressive.restore(run_values.get('progressive'))
    formats = describe_formats(config, experiment)
    log('continuing from the checkpoint of step %d%s', step, formats)
    renew_evaluations(
      run_values, experiment, evaluators, config, workdir, monitor, state
    )
  else:
    best.resume_from(None)
    run_values['rules'] = read_rules(evaluators)
    state = runtime.fresh_state()
    if train.init_from:
      with job.fail_together('reading train.init_from'):
        weights = import_weights(
          train.init_from,
          weights_of(state),
          runtime.stacks,
          experiment.fingerprint(),
          experiment.task,
        )
      # Those weights have the maps of their own run.
      state = map_renewal.renew_maps(
        replace_weights(state, weights), experiment.task, runtime
      )
    summary = describe_parameters(experiment)
    summary += describe_formats(config, experiment)
    log('starting from %s: %s', train.init_from or 'scratch', summary)
  with job.fail_together('keeping the vocabularies'):
    if job.is_leader():
      experiment.data.save_for_predicting(workdir)
      saver.write_plan(workdir)

  # ---- Train ----------------------------------------------------------------
  writers = NoMetricWriters()
  if job.is_leader():
    since = step if resumed else None
    evaluated = run_values['last'].get('step', 0)
    writers = MetricWriters(
      workdir, since, None, evaluated, run_values['curve']
    )
    if writers.hole:
      LOG.warning('%s', describe_hole(writers.hole))
      run_values['curve_holes'] = [*run_values['curve_holes'], writers.hole]
  stream = None if job.is_leader() else io.StringIO()
  progress_unit = experiment.task.progress_unit
  shown_total = total_steps if math.isfinite(total_steps) else None
  progress = Progress(shown_total, stream=stream, progress_unit=progress_unit)
  profile = Profile(train.profile_steps, workdir / 'profile')
  clock.keep_in(run_values)
  clock.switch_phase('train')
  health = Health(run_values['health'])
  run_values['health'] = health.values
  watch = WorkdirWatch(workdir, step, watches=job.is_leader())
  with contextlib.ExitStack() as stack:
    for closing in (watch, best, saver, writers, progress, profile):
      stack.enter_context(closing)
    stack.callback(getattr(batches, 'close', lambda: None))
    stack.enter_context(stop)
    ended = False  # an endless source has run dry
    running = collections.deque()  # (loss, counts) of the steps under way
    last_log_step = last_save_step = step
    last_publish_step = None
    last_eval_step = run_values['last'].get('step', -train.eval_first)
    shown = {}  # what the task measured up to the last log line
    scored = {}  # and how well the batches up to it were predicted

    parts.observe()

    def is_due(every, done, is_end=False):
      return step != done and (final or is_end or step % every == 0)

    while True:
      final = ended or step >= total_steps
      if step == 1:
        health.observe_first(state)
      if is_due(train.log_every, last_log_step, parts.is_end_of_window):
        watch.check(step)
        more = {}
        if not parts.cuts_windows or final or parts.is_end_of_window:
          more = progressive.metrics() | parts.number()
        state, row = _write_measurements(
          writers, state, step, progress, kinds_of_measurements, more
        )
        shown = {n: row[n] for n in measurements.list_shown(experiment.task)}
        if more or not parts.cuts_windows:
          scored = {n: more[n] for n in _PROGRESSIVE if n in more}
        health.observe_line(step, row)
        last_log_step = step
      if step % train.nan_every == 0:
        _raise_if_bad(state)
      if (
        is_due(eval_every, last_eval_step)
        if eval_steps is None
        else step != last_eval_step and (final or step in eval_steps)
      ):
        _await_steps(running, 0, run_values)
        _raise_if_bad(state)
        watch.check(step)
        clock.switch_phase('eval')
        health.observe_state(step, state)
        compiled = len(compile_s)
        try:
          with progress.pause('evaluating'), stop.allow_raising():
            measured = _measure_splits(evaluators, state, step, health)
        except interruption.Stopped:
          pass  # a resumed run evaluates this step again
        else:
          waited_before = run_values['evaluations_since_best']
          _note_evaluation(
            monitor,
            evaluators,
            measured,
            state,
            step,
            run_values,
            writers,
            best,
            health,
          )
          last_eval_step = step
          progress.take_once(sum(compile_s[compiled:]))
          waited = run_values['evaluations_since_best']
          run_values['stopped_early'] = 0 < train.patience <= waited
          if waited > waited_before:
            state = lower_rate(state, config.optimizer)
        clock.switch_phase('train')
      # Asked once: the signal may arrive at any moment.
      is_stopping = stop.reach()
      ending = final or is_stopping or run_values['stopped_early']
      if (
        is_due(checkpoint_every, last_save_step, parts.is_end_to_save)
        or ending
        and last_save_step != step
      ):
        _await_steps(running, 0, run_values)
        _raise_if_bad(state)
        watch.check(step)
        with progress.pause('saving'):
          clock.update()
          # A checkpoint must not outlive, in a kill or a power cut, the lines
          # and the best weights of which it knows.
          writers.flush()
          best.wait()
          run_values['progressive'] = progressive.state()
          run_values['curve'] = writers.position
          run_values |= parts.describe()
          state = saver.save(step, state, data=batches, host=run_values)
          best.begin_checkpoint(run_values['best'])
        last_save_step = step
      ends = ending and not is_stopping or parts.is_end_to_save
      if step != last_publish_step and saver.is_publish_step(step, ends):
        _raise_if_bad(state)
        health.observe_state(step, state)
        if not health.diverged:
          with progress.pause('publishing'):
            state = saver.publish(step, state, host=parts.describe() or None)
        last_publish_step = step
      if ending:
        break
      batch = next(batches, None)
      if batch is None:
        ended = stop.number is None
        continue
      progressive.observe(step, state, batch)
      profile.before(step)
      compiling = programs.note(batch)
      with (
        jax.profiler.StepTraceAnnotation('train', step_num=step),
        progress.pause(compiling, recurs=False)
        if compiling
        else contextlib.nullcontext(),
      ):
        state, loss = step_fn(state, batch)
      step += 1
      parts.observe(step)
      stop.hold()
      profile.after(step, state)
      # Not further ahead of the device than this: a signal, the rate and the
      # memory of queued batches would suffer.
      running.append((loss, runtime.count(batch)))
      tokens = _await_steps(running, STEPS_AHEAD, run_values)
      progress.update(step, loss=loss, tokens=tokens, once=scored, **shown)
    clock.update()
    saver.wait()
    best.complete_checkpoint()
    watch.check(step)
  if stop.number is not None:
    return stopping.end_training(stop, step, total_steps, LOG.warning)

  # ---- Report ---------------------------------------------------------------
  interruption.keep(
    lambda: f'all {step} steps are trained, the same command writes the report'
  )
  del state  # the report loads weights of its own
  kind = kind_of(config, kinds)
  return results.write_results(
    config, workdir, experiment, evaluators, run_values, step, kind
  )


def _expect_programs(config, batches, steps: int) -> int | None:
  """How many programs the training step will have; None where unknown."""
  if config.parallel.pipeline != 'none':  # one for each pair of shapes
    return None
  count = getattr(batches, 'count_programs', None)
  return count and count(steps)


def _write_measurements(
  writers, state, step, progress, kinds: dict, more: dict
):
  """Writes what was measured since the last line.

  Returns:
    (the state, whose measurements begin anew; name -> what was written).
  """
  sums = jax.device_get(state.metric_sums)
  measured = {
    name: measurements.read_measurement(kinds[name], *pair)
    for name, pair in sums.items()
  }
  row = {f'train/{name}': x for name, x in (measured | more).items()}
  if progress.rate:
    row['perf/steps_per_s'] = progress.rate
  if progress.tokens_per_s:
    row[f'perf/{progress.progress_unit}_per_s'] = progress.tokens_per_s
  writers.scalars(step, row)
  cleared = measurements.clear_sums(state.metric_sums)
  return dataclasses.replace(state, metric_sums=cleared), measured


def _await_steps(running, ahead: int, run_values: dict) -> int:
  """Waits until at most `ahead` steps are under way.

  Counts the others in `run_values`, and returns their tokens.
  """
  before = run_values['tokens']
  while len(running) > ahead:
    loss, counts = running.popleft()
    jax.block_until_ready(loss)
    tokens, examples = (int(n) for n in jax.device_get(counts))
    run_values['tokens'] += tokens
    run_values['examples'] += examples
  return run_values['tokens'] - before


def _raise_if_bad(state) -> None:
  step, which = jax.device_get(state.first_nonfinite).tolist()
  if step >= 0:
    name = sorted(state.metric_sums)[which]
    remedy = _OVERFLOW if name == 'exchange_overflow' else _REMEDY
    raise NonFiniteError(f'train/{name} is not finite at step {step}. {remedy}')


def _measure_splits(evaluators, state, step, health) -> dict:
  """{split: {metric: value}}."""
  measured = {}
  for split, evaluator in evaluators.items():
    if not getattr(evaluator, 'is_due', lambda step: True)(step):
      continue
    try:
      measured[split] = dict(evaluator.run(state))
    except FloatingPointError as e:
      raise NonFiniteError(f'{split} split, step {step}: {e}. {_REMEDY}') from e
    if step:  # fresh weights may well score all alike
      health.observe_scores(step, split, evaluator)
  return measured


def _note_evaluation(
  monitor, evaluators, measured, state, step, run_values, writers, best, health
) -> None:
  """Writes an evaluation down, and keeps the state if it is the best so far."""
  for split, values in measured.items():
    writers.scalars(step, {f'{split}/{n}': v for n, v in values.items()})
  last, run_values['last'] = run_values['last'], {'step': step, **measured}
  intervals = {s: getattr(e, 'intervals', {}) for s, e in evaluators.items()}
  run_values['intervals'] = {**run_values['intervals'], 'last': intervals}
  if monitor is None:
    return
  value = monitor.measure(measured['valid'])
  before = run_values['best'] and run_values['best']['value']
  if not health.diverged and monitor.is_better(value, before):
    run_values['best'] = {'step': step, 'value': value, 'metrics': measured}
    run_values['evaluations_since_best'] = 0
    run_values['intervals']['best'] = intervals
    of_run = {key: run_values[key] for key in ('plan', 'data', 'model')}
    about = run_values['best'] | of_run
    best.save(step, weights_of(state), about)
  elif math.isnan(value):
    # It says nothing of the step: neither patience nor the rate goes by it.
    if 'valid' not in last or not math.isnan(monitor.measure(last['valid'])):
      LOG.warning(
        'Step %d: %s', step, describe_nan(monitor, evaluators, measured)
      )
  elif step:  # the start itself cannot have waited
    run_values['evaluations_since_best'] += 1
