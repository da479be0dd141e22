"""Generative recommenders in JAX; `genrec` is the command.

    import genrec_jax

    run = genrec_jax.fit(events, model='sasrec')
    run.recommend([['lamp', 'desk']], k=3)

A name is imported when it is first used: `import genrec_jax` by itself loads
neither JAX nor flax, so that programs that only read files of this library
start at once. What is stable stands in docs/api.md.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = '0.1.0'

__all__ = [
  'EmbeddingTable',
  'Lookup',
  'RankingRun',
  'RetrievalRun',
  'ShardedEmbedding',
  'fit',
  'load',
]

if TYPE_CHECKING:  # what __getattr__ does, in words that type checkers read
  from genrec_jax.embedding.lookup_requests import Lookup
  from genrec_jax.embedding.sharded_embedding import (
    EmbeddingTable,
    ShardedEmbedding,
  )
  from genrec_jax.library.fitting import fit
  from genrec_jax.library.runs import RankingRun, RetrievalRun, load

_HOMES = {
  'EmbeddingTable': 'genrec_jax.embedding.sharded_embedding',
  'Lookup': 'genrec_jax.embedding.lookup_requests',
  'RankingRun': 'genrec_jax.library.runs',
  'RetrievalRun': 'genrec_jax.library.runs',
  'ShardedEmbedding': 'genrec_jax.embedding.sharded_embedding',
  'fit': 'genrec_jax.library.fitting',
  'load': 'genrec_jax.library.runs',
}


if not TYPE_CHECKING:  # who would take any name for one of these

  def __getattr__(name: str) -> Any:
    if name not in _HOMES:
      raise AttributeError(
        f'genrec_jax has no {name!r}; it offers {", ".join(__all__)}, and '
        'modules such as genrec_jax.config, which are imported by their names'
      )
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value  # asked for once
    return value


def __dir__() -> list[str]:
  return sorted({*__all__, *(x for x in globals() if x.startswith('__'))})
