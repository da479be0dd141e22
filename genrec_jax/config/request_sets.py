from genrec_jax.data.requests.movielens import MovielensOptions
from genrec_jax.data.requests.stream_draws import StreamOptions
