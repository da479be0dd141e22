"""Parts of the report for one kind of task only, measured at the end."""

import numpy as np

from genrec_jax.serve.predictor import Predictor
from genrec_jax.serve.weights import choose_checkpoint, load_weights

DRAWN = 64  # users among whom those of the page are chosen
DEPTH = 100  # recommendations in which their next item is looked for


def explain_users(config, workdir, experiment) -> list[dict]:
  """A few users' histories and what the best state recommends to them.

  They are not the best ones alone: of some users that are drawn by the seed,
  the one with the best rank, the one with the worst, and evenly between.
  """
  data = experiment.data
  split = 'test' if 'test' in data.splits else 'valid'
  if split not in data.splits or not config.report.users:
    return []
  predictor = Predictor.load(
    workdir,
    config,
    config.predict.checkpoint,
    experiment.extensions,
    lambda task: experiment.runtime,
  )
  examples, histories = data.splits[split], data.dataset.histories
  rng = np.random.default_rng(config.seed)
  count = min(max(DRAWN, config.report.users), len(examples))
  drawn = np.sort(rng.choice(len(examples), count, replace=False))
  most = config.report.recommendations
  depth = max(most, min(DEPTH, len(data.dataset.corpus)))
  users = predictor.explain(
    histories, examples, drawn, history=config.report.history, k=depth
  )
  users.sort(key=lambda user: user['target_rank'] or depth + 1)
  places = np.linspace(0, count - 1, min(config.report.users, count))
  chosen = []
  for place in sorted({round(place) for place in places}):
    user = users[place]
    user['recommendations'] = user['recommendations'][:most]
    chosen.append({**user, 'place': place + 1, 'of': count, 'depth': depth})
  return chosen


def measure_details(config, workdir, experiment) -> dict:
  """What the page shows of a ranking model, on the last split there is."""
  evaluators = experiment.evaluators(config)
  weights = load_weights(
    workdir,
    experiment.task,
    choose_checkpoint(config),
    experiment.extensions,
    experiment.runtime,
  )
  # Some are measured while a stream goes on, and have nothing at its end.
  evaluators = {
    name: evaluator
    for name, evaluator in evaluators.items()
    if getattr(evaluator, 'is_due', lambda step: True)(weights.step)
  }
  if not evaluators:
    return {}
  split = 'test' if 'test' in evaluators else list(evaluators)[-1]
  details = evaluators[split].details(weights, config.report, config.seed)
  return {'part': split, **details}
