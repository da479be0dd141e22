"""Data sets of requests by name."""

import functools

from genrec_jax.config import request_sets
from genrec_jax.data.requests import kuairand, movielens, own_log, yambda

# Name -> (path, options) -> RequestDataset.
DATASETS = {
  'movielens': movielens.load,
  'kuairand': kuairand.load,
  'yambda': yambda.load,
  'csv': functools.partial(own_log.load, format_='csv'),
  'parquet': functools.partial(own_log.load, format_='parquet'),
}
# Name -> the class of the options.
OPTIONS = {
  'movielens': request_sets.MovielensOptions,
  'kuairand': request_sets.KuairandOptions,
  'yambda': request_sets.YambdaOptions,
  'csv': request_sets.LogOptions,
  'parquet': request_sets.LogOptions,
}
# Name -> the section of `config.data` with the options, if it is another.
SECTIONS = {'csv': 'log', 'parquet': 'log'}
