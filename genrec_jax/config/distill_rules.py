"""What the keys of the section `distill` may be, for key_rules.py."""

from genrec_jax.config.value_rules import Rule, number, some, whole, words

_FACTOR = number(least=0)

RULES = {
  'distill.method': words(
    'none', 'one_head', 'teacher_alone', 'head', 'adapter'
  ),
  'distill.scores': some(Rule('some text')),
  'distill.weight': Rule('text'),
  'distill.label_scale': number(above=0),
  'distill.loss_weight': _FACTOR,
  'distill.gradient_scale': _FACTOR,
  'distill.adapter_gradient_scale': _FACTOR,
  'distill.adapter_weight': _FACTOR,
  'distill.adapter_input': words('probability', 'logit', 'residual'),
  'distill.adapter_hidden': some(whole(1, 2**20)),
}
