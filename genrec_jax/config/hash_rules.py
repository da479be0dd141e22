"""What the keys of the section `hash` may be, for key_rules.py."""

from genrec_jax.config.value_rules import Rule, number, some, whole, words

RULES = {
  'hash.rows': whole(),
  'hash.compression': number(above=1),
  'hash.tables': Rule('a regular expression'),
  'hash.dim': whole(1, 2**20),
  'hash.vectors': Rule('text'),
  'hash.method': words('both', 'frequency', 'embedding'),
  'hash.private': some(number(least=0, below=1), filled=True),
  'hash.reserved': whole(1),
  'hash.compare': Rule('True or False'),
  'hash.shrink': number(least=0),
  'hash.seed': whole(0, 2**63 - 1),
  'hash.renew_every': whole(),
  'hash.look_back': whole(),
}
