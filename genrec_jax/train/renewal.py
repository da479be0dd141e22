"""Measures anew what an earlier version has measured by other rules.

Two evaluations can be compared only if both count alike. An evaluator whose
metrics have come to mean something else has a higher number of `rules`, which
checkpoints keep. A run that continues from other rules measures its best
weights once more, and so compares like with like.
"""

import logging
import pathlib
from collections.abc import Mapping

from genrec_jax.serve.weights import load_weights

LOG = logging.getLogger('genrec_jax')


def read_rules(evaluators: Mapping) -> dict[str, int]:
  """Split -> the number of the rules by which it is evaluated."""
  return {s: getattr(e, 'rules', 1) for s, e in evaluators.items()}


def renew_evaluations(
  run_values: dict, experiment, evaluators, config, workdir, monitor, state
) -> None:
  """Measures the best weights, and the last, where rules have changed.

  Args:
    run_values: as the checkpoint has them; 'best', 'last' and 'rules' are
      renewed.
    experiment: of the run.
    evaluators: split -> its evaluator.
    config: of the run.
    workdir: of the run.
    monitor: compares evaluations; None without a validation split.
    state: of the last step.
  """
  rules = read_rules(evaluators)
  # Earlier versions kept none.
  before = run_values['rules'] or dict.fromkeys(rules, 1)
  run_values['rules'] = rules
  # A split that is new has nothing to compare.
  if all(
    before.get(split, number) == number for split, number in rules.items()
  ):
    return
  best, last = run_values['best'], run_values['last']
  if last.get('step') == int(state.step):
    measured = {split: dict(e.run(state)) for split, e in evaluators.items()}
    run_values['last'] = {'step': last['step'], **measured}
  if best is None:
    return
  weights = load_weights(
    pathlib.Path(workdir),
    experiment.task,
    'best',
    experiment.extensions,
    experiment.runtime,
  )
  if weights.step != best['step']:
    LOG.warning(
      'the best step so far, %d, was measured by an earlier version, which '
      'counted ties and misses otherwise, and its weights are gone',
      best['step'],
    )
    return
  measured = {
    split: dict(evaluator.run(weights))
    for split, evaluator in experiment.evaluators(config).items()
  }
  value = monitor.measure(measured['valid']) if monitor else best['value']
  LOG.warning(
    'the best step so far, %d, was measured by an earlier version, which '
    'counted ties and misses otherwise; measured anew, it has %.6g instead of '
    '%.6g. Evaluations before step %d in the curves are as they were',
    best['step'],
    value,
    best['value'],
    int(state.step),
  )
  run_values['best'] = {**best, 'value': value, 'metrics': measured}
