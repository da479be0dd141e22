"""Parts of the report for one kind of task only, measured at the end."""

import dataclasses

import numpy as np

from genrec_jax.embedding.local_tables import SingleDeviceEvalRuntime
from genrec_jax.serve.predictor import Predictor
from genrec_jax.serve.weights import load_weights


def explain_users(config, workdir, experiment) -> list[dict]:
  """A few users' histories and what the best state recommends to them."""
  data = experiment.data
  split = 'test' if 'test' in data.splits else 'valid'
  if split not in data.splits or not config.report.users:
    return []
  predictor = Predictor.load(
    workdir, config, config.predict.checkpoint, experiment.extensions
  )
  examples, histories = data.splits[split], data.dataset.histories
  rng = np.random.default_rng(config.seed)
  count = min(config.report.users, len(examples))
  chosen = np.sort(rng.choice(len(examples), count, replace=False))
  return predictor.explain(
    histories,
    examples,
    chosen,
    history=config.report.history,
    k=config.report.recommendations,
  )


def measure_details(config, workdir, experiment) -> dict:
  """What the page shows of a ranking model, on the last split there is."""
  # The weights are put together on one device, however they were trained.
  runtime = SingleDeviceEvalRuntime.of(experiment.extensions)
  experiment = dataclasses.replace(experiment, runtime=runtime)
  evaluators = experiment.evaluators(config)
  split = 'test' if 'test' in evaluators else list(evaluators)[-1]
  weights = load_weights(
    workdir, experiment.task, config.predict.checkpoint, experiment.extensions
  )
  details = evaluators[split].details(weights, config.report, config.seed)
  return {'part': split, **details}
