"""What the keys of sections for what users did may be, for key_rules.py.

They are `data.interests`, `data.movielens_clicks` and `data.taobao`, whose
examples have histories, and `data.movielens_ratings`.
"""

from genrec_jax.config.value_rules import number, whole, words

_SHARE = number(least=0, most=1)
_HELD_OUT = number(least=0, below=1)
_INSIDE = number(above=0, below=1)
_ZERO_OR_MORE = number(least=0)
_SEED = whole(0, 2**63 - 1)

RULES = {
  'data.interests.users': whole(1),
  'data.interests.impressions': whole(1),
  'data.interests.history': whole(1),
  'data.interests.gap_s': whole(1),
  'data.interests.activity': _ZERO_OR_MORE,
  'data.interests.span_s': whole(1),
  'data.interests.items': whole(2),
  'data.interests.categories': whole(2),
  'data.interests.zipf': _ZERO_OR_MORE,
  'data.interests.favourites': whole(1),
  'data.interests.loyal': _SHARE,
  'data.interests.decay': _ZERO_OR_MORE,
  'data.interests.half_life_s': number(above=0),
  'data.interests.periodic': _ZERO_OR_MORE,
  'data.interests.period_s': whole(1),
  'data.interests.period_width': number(above=0, most=0.5),
  'data.interests.order': _ZERO_OR_MORE,
  'data.interests.kinds': whole(2),
  'data.interests.taste': _ZERO_OR_MORE,
  'data.interests.rate': _INSIDE,
  'data.interests.split': words('users', 'time'),
  'data.interests.valid_share': _HELD_OUT,
  'data.interests.test_share': _HELD_OUT,
  'data.interests.seed': _SEED,
  'data.movielens_clicks.history': whole(1),
  'data.movielens_clicks.least': whole(1),
  'data.movielens_clicks.windows': whole(),
  'data.movielens_clicks.valid_share': _HELD_OUT,
  'data.movielens_clicks.test_share': _HELD_OUT,
  'data.movielens_clicks.seed': _SEED,
  'data.movielens_ratings.least': number(above=0, most=5),
  'data.movielens_ratings.valid_fraction': _HELD_OUT,
  'data.movielens_ratings.test_fraction': _HELD_OUT,
  'data.movielens_ratings.seed': _SEED,
  'data.taobao.split': words('corrected', 'published'),
  'data.taobao.history': whole(1),
  'data.taobao.most': whole(2),
  'data.taobao.points': whole(1),
  'data.taobao.train_quantile': _INSIDE,
  'data.taobao.valid_share': _INSIDE,
  'data.taobao.memory_mb': whole(),
  'data.taobao.negative_times': words('refuse', 'drop'),
  'data.taobao.seed': _SEED,
}
