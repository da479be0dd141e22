"""What the keys of the section `data.drift` may be, for key_rules.py."""

from genrec_jax.config.value_rules import number, whole

_SHARE = number(least=0, most=1)
_ZERO_OR_MORE = number(least=0)

RULES = {
  'data.drift.windows': whole(1),
  'data.drift.rows': whole(1),
  'data.drift.window_s': whole(1),
  'data.drift.segments': whole(1),
  'data.drift.segment_zipf': _ZERO_OR_MORE,
  'data.drift.fields': whole(1),
  'data.drift.values': whole(2),
  'data.drift.zipf': _ZERO_OR_MORE,
  'data.drift.pairs': whole(),
  'data.drift.width': whole(1),
  'data.drift.half_life': number(above=0),
  'data.drift.jumps': _SHARE,
  'data.drift.reborn': _SHARE,
  'data.drift.common': _SHARE,
  'data.drift.signal': _ZERO_OR_MORE,
  'data.drift.pair_share': _SHARE,
  'data.drift.rate': number(above=0, below=1),
  'data.drift.rate_spread': _ZERO_OR_MORE,
  'data.drift.rate_half_life': _ZERO_OR_MORE,
  'data.drift.delay': _ZERO_OR_MORE,
  'data.drift.lost': _SHARE,
  'data.drift.seed': whole(0, 2**63 - 1),
}
