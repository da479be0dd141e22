"""What the columns of a teacher's scores are called; needs no package."""

from collections.abc import Sequence


def name_columns(labels: Sequence[str], column: str = 'teacher') -> list[str]:
  """The column of each label's scores.

  >>> name_columns(['click']), name_columns(['click', 'like'])
  (['teacher'], ['teacher_click', 'teacher_like'])

  Args:
    labels: names of the labels.
    column: what the names begin with.
  """
  if len(labels) == 1:
    return [column]
  return [f'{column}_{label}' for label in labels]


def name_weight(column: str = 'teacher') -> str:
  """The column of how much the scores of an example count.

  >>> name_weight()
  'teacher_weight'
  """
  return f'{column}_weight'
