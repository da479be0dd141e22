"""Data sets of requests by name."""

from genrec_jax.config import request_sets
from genrec_jax.data.requests import kuairand, movielens, yambda

# Name -> (path, options) -> RequestDataset.
DATASETS = {
  'movielens': movielens.load,
  'kuairand': kuairand.load,
  'yambda': yambda.load,
}
# Name -> the class of the options.
OPTIONS = {
  'movielens': request_sets.MovielensOptions,
  'kuairand': request_sets.KuairandOptions,
  'yambda': request_sets.YambdaOptions,
}
