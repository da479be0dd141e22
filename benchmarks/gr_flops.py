"""What training a generative ranker costs: multiply-accumulates of its steps.

As papers do, 6 operations are counted for each multiply-accumulate of the
forward pass, 2 forward and 4 backward. Products of tokens with weights are read
from the traced program. Of the attention count the pairs of tokens that see
each other, whatever a backend computes beside them. Padding costs nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from benchmarks import flops
from genrec_jax.data.requests import batches, packing
from genrec_jax.data.requests.requests import RequestDataset
from genrec_jax.models.request_models import RequestModel

# What changes which tokens there are, or which of them see each other.
_COUNTED = {
  'layout': ('summed', 'no_actions'),
  'window': (None,),
  'truncated_layers': (0,),
  'skipped_layers': (0,),
  'listwise': (False,),
  'context_mask': ('both',),
}
_BATCH = 2  # requests of a traced batch
_ROOM = (128, 64)  # its events and candidates


def count_training(config, dataset: RequestDataset) -> float:
  """Operations of one pass over the training split, forward and backward.

  Args:
    config: of a run of `stu`.
    dataset: the requests of `config.data`.

  Raises:
    ValueError: the model has options that are not counted.
  """
  train, model = dataset.splits['train'], config.model
  _check_model(config)
  spans = packing.find_spans(
    dataset,
    train,
    np.flatnonzero(np.diff(train.offsets)),
    None,
    max_history=config.data.max_history,
    max_candidates=config.data.max_candidates,
    draws=packing.Draws(config.seed, 0),
  )
  slots = len(dataset.spec.context_columns)
  pairs = count_pairs(slots, spans.events, spans.candidates).sum()
  of_request, of_event, of_candidate = count_dense(config, dataset)
  attention = model.blocks * model.heads * (model.dqk + model.dv) * pairs
  dense = of_request * len(spans.events)
  dense += of_event * spans.events.sum()
  dense += of_candidate * spans.candidates.sum()
  return 6.0 * float(dense + attention)


def _check_model(config) -> None:
  if config.data.stochastic_length.alpha:
    raise ValueError('histories that are cut at random are not counted')
  for key, value in _COUNTED.items():
    if config.model[key] not in value:
      raise ValueError(
        f'model.{key} is {config.model[key]!r}, and what it costs is counted '
        f'for {value[0]!r} alone'
      )


def count_pairs(slots: int, events, candidates):
  """Pairs of tokens of a request of which the first sees the second.

  Context sees itself and the history; an event sees the context, the events
  before it and itself; a candidate sees all but other candidates.

  >>> count_pairs(1, 2, 3)
  20

  Args:
    slots: tokens of context.
    events: tokens of the history, a number or an array of them.
    candidates: likewise.
  """
  context = slots * (slots + events)
  history = events * slots + events * (events + 1) // 2
  return context + history + candidates * (slots + events + 1)


def count_dense(config, dataset: RequestDataset) -> tuple[float, ...]:
  """Multiply-accumulates with weights: of a request, an event, a candidate."""
  events, candidates = _ROOM
  base = _count_products(config, dataset, events, candidates)
  of_event = _count_products(config, dataset, 2 * events, candidates) - base
  of_candidate = _count_products(config, dataset, events, 2 * candidates) - base
  left = base - of_event - of_candidate
  return left / _BATCH, of_event / events, of_candidate / candidates


def _count_products(config, dataset, events: int, candidates: int) -> int:
  """Those of the forward pass of a batch of that room."""
  fields = config.model.to_dict()
  model = RequestModel.from_fields(
    fields.pop('name'),
    fields | {'implementation': 'reference'},
    max_history=config.data.max_history,
    max_candidates=config.data.max_candidates,
  )
  batch = batches.collate_requests(
    dataset,
    dataset.splits['train'],
    np.zeros(0, int),
    batch_size=_BATCH,
    max_history=config.data.max_history,
    max_candidates=config.data.max_candidates,
    capacity=(events, candidates),
    draws=packing.Draws(0, 0),
  )
  counts = {'history': events, 'candidates': candidates, 'context': _BATCH}

  def forward(batch):
    built = model.build(dataset.spec, nnx.Rngs(0))
    rows = {
      name: jnp.zeros((counts[read.part], read.width))
      for name, read in built.list_reads().items()
    }
    return built(rows, batch, train=True)

  total = 0
  for equation in flops.products(jax.make_jaxpr(forward)(batch).jaxpr):
    (contracted, _), (batched, _) = equation.params['dimension_numbers']
    left, right = (v.aval.shape for v in equation.invars)
    # Those of the attention go by sequence or head.
    if not batched and len(right) == 2:
      (out,) = (v.aval.shape for v in equation.outvars)
      total += int(np.prod(out)) * int(np.prod([left[i] for i in contracted]))
  return total
