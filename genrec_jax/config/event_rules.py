"""What the fields of models of histories may be, for key_rules.py."""

from genrec_jax.config.value_rules import Rule, number, some, whole

_NAME, _SWITCH = Rule('some text'), Rule('True or False')
_WIDTH = whole(1, 2**20)

MODEL = {
  'width': _WIDTH,
  'relu_end': _SWITCH,
  'projection': _SWITCH,
  'projection_eps': number(least=0),
  'mechanism': _NAME,
  'weights': _NAME,
  'k_sequences': _SWITCH,
  'recurrent_width': whole(0, 2**20),
  'one_head_mlp': _SWITCH,
  'history_name': Rule('text'),
  'leave_out': some(_NAME),
  'position': _SWITCH,
}
# A section that takes the name of any column of a history.
PAIRS = {'model.pairs': _NAME}
