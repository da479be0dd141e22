from genrec_jax.data.requests.kuairand import KuairandOptions
from genrec_jax.data.requests.movielens import MovielensOptions
from genrec_jax.data.requests.stream_draws import StreamOptions
from genrec_jax.data.requests.yambda import YambdaOptions

__all__ = (
  'KuairandOptions',
  'MovielensOptions',
  'StreamOptions',
  'YambdaOptions',
)
