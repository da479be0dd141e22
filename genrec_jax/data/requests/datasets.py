"""Data sets of requests by name."""

from genrec_jax.data.requests import kuairand, movielens, yambda

# Name -> (path, options) -> RequestDataset.
DATASETS = {
  'movielens': movielens.load,
  'kuairand': kuairand.load,
  'yambda': yambda.load,
}
# Name -> the class of the options.
OPTIONS = {
  'movielens': movielens.MovielensOptions,
  'kuairand': kuairand.KuairandOptions,
  'yambda': yambda.YambdaOptions,
}
