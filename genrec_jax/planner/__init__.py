"""Tables, lookups and a machine in; a sharding plan and its report out."""

from genrec_jax.planner.describe import describe
from genrec_jax.planner.errors import insufficient_memory_error
from genrec_jax.planner.evaluate import evaluate_plan
from genrec_jax.planner.hardware import Topology
from genrec_jax.planner.options import Constraint, ConstraintError
from genrec_jax.planner.pooling import PoolingRule
from genrec_jax.planner.report import Report
from genrec_jax.planner.search import make_plan
from genrec_jax.planner.storage import InsufficientMemory
from genrec_jax.planner.workload import (
  DensePart,
  Feature,
  Load,
  TowerLoad,
  from_tables,
  from_towers,
  tree_bytes,
)

__all__ = [
  'Constraint',
  'ConstraintError',
  'DensePart',
  'Feature',
  'InsufficientMemory',
  'Load',
  'PoolingRule',
  'Report',
  'Topology',
  'TowerLoad',
  'describe',
  'evaluate_plan',
  'from_tables',
  'from_towers',
  'make_plan',
  'insufficient_memory_error',
  'tree_bytes',
]
