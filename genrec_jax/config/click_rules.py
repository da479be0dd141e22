"""What the keys of the generated log of clicks may be, for key_rules.py."""

from genrec_jax.config.value_rules import number, some, whole

RULES = {
  'data.clicks.rows': whole(1),
  'data.clicks.fields': whole(1),
  'data.clicks.values': whole(1),
  'data.clicks.numbers': whole(),
  'data.clicks.orders': some(whole(1)),
  'data.clicks.terms': whole(),
  'data.clicks.noise': number(least=0),
  'data.clicks.traits': whole(1),
  'data.clicks.signal': number(least=0),
  'data.clicks.zipf': number(least=0),
  'data.clicks.seed': whole(0, 2**63 - 1),
  'data.clicks.blocks': whole(),
  'data.clicks.within': number(least=0, most=1),
  'data.clicks.silent': whole(),
}
