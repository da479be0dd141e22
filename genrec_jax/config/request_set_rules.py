"""Key -> what its value may be, for the options of data sets of requests.

Beside key_rules.py, which has all other keys.
"""

import dataclasses

from genrec_jax.config.request_sets import KuairandOptions
from genrec_jax.config.value_rules import Rule, number, some, whole, words

_TEXT, _NAME, _SWITCH = Rule('text'), Rule('some text'), Rule('True or False')
_FEEDBACK = ('like', 'dislike', 'unlike', 'undislike')
_ASKED_AT = words('last_event', 'first_candidate')
_HISTORY = words('order', 'before')
_DUPLICATES = words('keep', 'drop')
RULES = {
  'data.movielens.candidates': whole(1),
  'data.movielens.train_requests': whole(),
  'data.movielens.min_history': whole(1),
  'data.movielens.min_count': whole(1),
  'data.movielens.threshold': number(),
  'data.movielens.rating_label': _SWITCH,
  'data.movielens.user_features': _SWITCH,
  'data.movielens.asked_at': _ASKED_AT,
  'data.movielens.duplicates': _DUPLICATES,
  'data.kuairand.candidates': whole(1),
  'data.kuairand.pause_s': whole(),
  'data.kuairand.history': _HISTORY,
  'data.kuairand.asked_at': _ASKED_AT,
  'data.kuairand.labels': some(
    words(*KuairandOptions().labels, 'play_time'), filled=True
  ),
  'data.kuairand.valid_from': _NAME,
  'data.kuairand.test_from': _NAME,
  'data.kuairand.step_s': whole(),
  'data.kuairand.random': _SWITCH,
  'data.kuairand.tab': _SWITCH,
  'data.kuairand.candidate_tab': _SWITCH,
  'data.kuairand.request_tab': _SWITCH,
  'data.kuairand.min_history': whole(1),
  'data.kuairand.min_count': whole(1),
  'data.kuairand.duplicates': _DUPLICATES,
  'data.yambda.source': words('auto', 'multi_event', 'listens'),
  'data.yambda.feedback': some(words(*_FEEDBACK)),
  'data.yambda.threshold': whole(),
  'data.yambda.candidates': whole(1),
  'data.yambda.pause_s': whole(),
  'data.yambda.history': _HISTORY,
  'data.yambda.asked_at': _ASKED_AT,
  'data.yambda.last_time': whole(),
  'data.yambda.test_s': whole(1),
  'data.yambda.valid_s': whole(),
  'data.yambda.gap_s': whole(),
  'data.yambda.train_s': whole(),
  'data.yambda.step_s': whole(),
  'data.yambda.watch_time': _SWITCH,
  'data.yambda.sort': _SWITCH,
  'data.yambda.min_history': whole(1),
  'data.yambda.min_count': whole(1),
  'data.log.user': _NAME,
  'data.log.item': _NAME,
  'data.log.time': _TEXT,
  'data.log.time_unit': words('s', 'ms', 'us', 'ns'),
  'data.log.features': some(_NAME),
  'data.log.candidate_features': some(_NAME),
  'data.log.request_features': some(_NAME),
  'data.log.items': _TEXT,
  'data.log.items_id': _TEXT,
  'data.log.item_features': some(_NAME),
  'data.log.users': _TEXT,
  'data.log.users_id': _TEXT,
  'data.log.user_features': some(_NAME),
  'data.log.unlisted': words('error', 'missing'),
  'data.log.actions': some(_NAME),
  'data.log.labels': some(_NAME),
  'data.log.regression': some(_NAME),
  'data.log.watch_time': _TEXT,
  'data.log.weight': _TEXT,
  'data.log.candidate_if': _TEXT,
  'data.log.event_if': _TEXT,
  'data.log.request': _TEXT,
  'data.log.candidates': whole(1),
  'data.log.pause_s': whole(),
  'data.log.history': _HISTORY,
  'data.log.asked_at': _ASKED_AT,
  'data.log.valid_from': _TEXT,
  'data.log.test_from': _NAME,
  'data.log.step_s': whole(),
  'data.log.min_history': whole(1),
  'data.log.min_count': whole(1),
  'data.log.duplicates': _DUPLICATES,
  'data.log.delimiter': _TEXT,
  'data.log.header': words('auto', 'yes', 'no', 'true', 'false'),
  'data.log.decimal': words('.', ','),
}


def check_options(section: str, options: object) -> None:
  """Refuses options of a data set of requests, which a call may set freely.

  Args:
    section: of `config.data`.
    options: its class of request_sets.py.

  Raises:
    ValueError: one has a value of another type or range.
  """
  for field in dataclasses.fields(options):
    key, value = f'data.{section}.{field.name}', getattr(options, field.name)
    if problem := RULES[key].explain(value):
      raise ValueError(f'{key} is {value!r}, must be {problem}')
