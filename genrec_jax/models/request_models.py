"""The models of requests by name: `stu`, and every ranking model, pooled."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from flax import nnx

from genrec_jax.config.request_models import PooledRequests
from genrec_jax.features import RequestSpec
from genrec_jax.models import RANKERS
from genrec_jax.models.pooled_requests import PooledRanker
from genrec_jax.models.stu import STU

# A model that reads histories event by event has nothing of a pool.
POOLED = {n: x for n, x in RANKERS.items() if not x.reads_histories}
NAMES = ('stu', *sorted(POOLED))
HISTORY = 'history'  # the section of a ranking model with `PooledRequests`


@dataclasses.dataclass(frozen=True)
class RequestModel:
  """A model and its sizes, not yet built.

  Attributes:
    name: one of `NAMES`.
    config: of the model.
    pooled: what a ranking model is told of histories; None for `stu`.
  """

  name: str
  config: Any
  pooled: PooledRequests | None = None

  @classmethod
  def from_fields(
    cls, name: str, fields: Mapping, **limits: int
  ) -> 'RequestModel':
    """The model that a config describes.

    Args:
      name: one of `NAMES`.
      fields: of its section, but for the name.
      **limits: `max_history` and `max_candidates` of the data.
    """
    if name == 'stu':
      return cls(name, STU.Config(**fields, **limits))
    if name not in POOLED:
      raise ValueError(
        f'model.name is {name!r}; models for requests are {", ".join(NAMES)}'
      )
    fields = dict(fields)
    pooled = PooledRequests(**fields.pop(HISTORY, {}))
    return cls(name, POOLED[name].Config(**fields), pooled)

  def build(self, spec: RequestSpec, rngs: nnx.Rngs) -> nnx.Module:
    """The model for such requests, with fresh parameters."""
    if self.pooled is None:
      return STU(self.config, spec, rngs)
    ranker = POOLED[self.name]
    return PooledRanker(ranker, self.config, self.pooled, spec, rngs)
