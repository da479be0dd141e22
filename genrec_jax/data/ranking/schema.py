"""Which column of a raw file becomes which feature, and how."""

import dataclasses
from collections.abc import Mapping, Sequence

from genrec_jax.config.loading import hint_nearest
from genrec_jax.data import fields
from genrec_jax.data.quoting import list_names, quote
from genrec_jax.data.ranking import annotations as annotations_lib
from genrec_jax.data.ranking import history_rules
from genrec_jax.data.ranking import rows as rows_lib

KINDS = (
  'categorical', 'multi_hot', 'sequence', 'numeric', 'numeric_sequence',
)  # fmt: skip
TRANSFORMS = ('as_is', 'log', 'ln2', 'standardize')
VOCABULARIES = ('fitted', 'hashed')
OOV = ('row', 'hash', 'error')
POOLINGS = ('sum', 'mean')
KEEPS = ('', 'first', 'last')


@dataclasses.dataclass(frozen=True)
class Column:
  """How one feature is made of a column.

  Attributes:
    name: of the feature.
    column: of the raw file.
    kind: one of KINDS.
    transform: one of TRANSFORMS, for numbers.
    fill: what an empty cell is read as, in a history an empty value inside of
      one; '' leaves it missing.
    table: name of the table and the vocabulary, which features may share.
    vocabulary: 'fitted' on the training split, or 'hashed' without one.
    min_count: rarer values are unseen ones.
    oov: what an unseen value becomes, one of OOV.
    hash_rows: rows of unseen values (oov='hash'), or of all values (hashed).
    pooling: one of POOLINGS, for multi_hot and sequence.
    max_len: most values of those; 0 is any number.
    separator: between their values in a cell of text.
    keep: one of KEEPS, the end of a list that `max_len` leaves; '' is the last
      values of a sequence, the first ones of a multi_hot.
    weights: column of the weights of their values, lists of the same lengths;
      '' gives them none.
    clip: largest size of a z-score (transform 'standardize'); 0 bounds none.
    train_unseen: share of its known values that a training batch reads as
      unseen; None is `data.train_unseen`.
    history: whose column it is, which is one value an event, see
      `event_lists`; '' for none.
  """

  name: str
  column: str = ''
  kind: str = 'categorical'
  transform: str = 'as_is'
  fill: str = ''
  table: str = ''
  vocabulary: str = 'fitted'
  min_count: int = 1
  oov: str = 'row'
  hash_rows: int = 0
  pooling: str = 'sum'
  max_len: int = 0
  separator: str = '^'
  keep: str = ''
  weights: str = ''
  clip: float = 0.0
  train_unseen: float | None = None
  history: str = ''

  def __post_init__(self):
    for option, known in (
      ('kind', KINDS),
      ('transform', TRANSFORMS),
      ('vocabulary', VOCABULARIES),
      ('oov', OOV),
      ('pooling', POOLINGS),
      ('keep', KEEPS),
    ):
      if (value := getattr(self, option)) not in known:
        raise ValueError(
          f'{self._quote_key(option)} is {value!r}, must be one of '
          f'{", ".join(filter(None, known))}' + hint_nearest(str(value), known)
        )
    for option, least in (('min_count', 1), ('hash_rows', 0), ('max_len', 0)):
      value = getattr(self, option)
      if not isinstance(value, int) or value < least:
        raise ValueError(
          f'{self._quote_key(option)} must be a whole number, at least '
          f'{least}, not {value!r}'
        )
    if self.has_numbers and self.fill:
      try:
        fill = float(self.fill)
      except ValueError:
        raise ValueError(
          f'{self._quote_key("fill")} is {self.fill!r}, not a number'
        ) from None
      if (
        not abs(fill) <= fields.LARGEST_FLOAT32
      ):  # of a column as well, which it would spoil
        raise ValueError(
          f'{self._quote_key("fill")} is {self.fill!r}, not a finite number '
          'of float32'
        )
    self._check_shares()
    if self.coded:
      self._check_vocabulary()
    if self.is_list and not self.separator:
      raise ValueError(f'{self._quote_key("separator")} must not be empty')
    history_rules.check_column(self, self._quote_key)
    if self.weights and not self.is_list:
      raise ValueError(
        f'{self._quote_key("weights")} is {self.weights!r}, and one value has '
        "no weights; set kind to 'multi_hot' or 'sequence', or leave it out"
      )
    if self.weights and self.fill:
      raise ValueError(
        f'{self._quote_key("fill")} is {self.fill!r}, and a value that fills '
        'an empty cell has no weight; leave fill or weights out'
      )

  def _quote_key(self, option: str) -> str:
    return f'{option} of feature {self.name!r} (data.features)'

  def _check_shares(self) -> None:
    if not _is_between(self.clip, 0, float('inf')):
      raise ValueError(
        f'{self._quote_key("clip")} must be a number, at least 0, not '
        f'{self.clip!r}'
      )
    if self.clip and not (self.has_numbers and self.transform == 'standardize'):
      raise ValueError(
        f'{self._quote_key("clip")} bounds z-scores: set transform to '
        "'standardize', or leave it out"
      )
    if self.train_unseen is None:
      return
    check_share(self.train_unseen, self._quote_key('train_unseen'))
    if self.train_unseen and not self.has_unseen_rows:
      raise ValueError(
        f'{self._quote_key("train_unseen")} is {self.train_unseen}, and this '
        'feature has no rows of unseen values; set it to 0'
      )

  def _check_vocabulary(self) -> None:
    hashes = self.vocabulary == 'hashed' or self.oov == 'hash'
    if self.hash_rows >= 1 << 31:
      raise ValueError(
        f'{self._quote_key("hash_rows")} is {self.hash_rows:,}; ids of rows '
        'have 31 bits'
      )
    if hashes and not self.hash_rows:
      raise ValueError(
        f'{self._quote_key("hash_rows")} must be set for hashing'
      )
    if self.oov == 'error' and self.min_count > 1:
      raise ValueError(
        f'{self._quote_key("min_count")} is {self.min_count}: rare values have '
        'no '
        "row when oov is 'error'; set it to 1"
      )

  @property
  def source(self) -> str:
    return self.column or self.name

  @property
  def sources(self) -> list[str]:
    """The columns that it reads."""
    return [self.source, *filter(None, [self.weights])]

  @property
  def is_list(self) -> bool:
    """Whether a row has any number of its values."""
    return self.kind in ('multi_hot', 'sequence', 'numeric_sequence')

  @property
  def has_numbers(self) -> bool:
    """Whether its cells, or the values inside them, are numbers."""
    return self.kind in ('numeric', 'numeric_sequence')

  @property
  def keeps_last(self) -> bool:
    """Whether `max_len` leaves the last values of a list."""
    if self.keep:
      return self.keep == 'last'
    return self.kind in ('sequence', 'numeric_sequence')

  @property
  def coded(self) -> bool:
    """Its values are rows of a table."""
    return not self.has_numbers or self.transform == 'ln2'

  @property
  def has_unseen_rows(self) -> bool:
    """Whether rows of its table are for values that no training row has."""
    return self.coded and self.vocabulary == 'fitted' and self.oov != 'error'

  def to_json(self) -> dict:
    """Every option; those of later versions where they say something."""
    options = dataclasses.asdict(self)
    return {
      k: v for k, v in options.items() if k not in _NEWER or v != _NEWER[k]
    }

  @property
  def table_name(self) -> str:
    return self.table or self.name


@dataclasses.dataclass(frozen=True)
class Schema:
  """What the columns of a raw file are.

  Attributes:
    columns: of the features, in the order of the file.
    labels: columns of the labels.
    group: column of the groups, '' for none.
    annotations: what else rows tell beside their features.
  """

  columns: tuple[Column, ...]
  labels: tuple[str, ...]
  group: str = ''
  annotations: annotations_lib.Annotations = annotations_lib.Annotations()

  def __post_init__(self):
    if not self.columns:
      raise ValueError('data.features names no feature')
    for what, names in (
      ('label', self.labels),
      ('feature', [c.name for c in self.columns]),
    ):
      for name in names:
        if list(names).count(name) > 1:
          raise ValueError(f'two {what}s are named {name!r}; rename one')
    for column in self.columns:
      for source in column.sources:
        if source in self.labels:
          raise ValueError(
            f'column {source!r} is a label and a feature '
            f'({column.name!r}); remove it from data.features or data.labels'
          )
    names = {c.name: 'feature' for c in self.columns}
    names |= dict.fromkeys(self.labels, 'label')
    for extra in self.annotations.extras:
      if extra.name in names:
        raise ValueError(
          f'data.extras.{extra.name}: a {names[extra.name]} has this name; '
          'give the extra another one and say '
          f'data.extras.<other name>.column={extra.source}'
        )
    history_rules.check_histories(self.histories, names)
    first = {}
    for column in self.coded:
      other = first.setdefault(column.table_name, column)
      for option in ('vocabulary', 'min_count', 'oov', 'hash_rows'):
        if getattr(column, option) != getattr(other, option):
          raise ValueError(
            f'features {other.name!r} and {column.name!r} share the table '
            f'{column.table_name!r} but not {option}; give both the same'
          )

  @property
  def coded(self) -> list[Column]:
    return [c for c in self.columns if c.coded]

  @property
  def single(self) -> list[Column]:
    """One value a row: the columns of `Examples.ids`."""
    return [c for c in self.columns if c.coded and not c.is_list]

  @property
  def lists(self) -> list[Column]:
    return [c for c in self.columns if c.is_list]

  @property
  def histories(self) -> dict[str, list[Column]]:
    """Name of each history -> its columns."""
    names = dict.fromkeys(c.history for c in self.columns if c.history)
    return {h: [c for c in self.columns if c.history == h] for h in names}

  @property
  def numeric(self) -> list[Column]:
    """One number a row: the columns of `Examples.dense`."""
    return [c for c in self.columns if not c.coded and not c.is_list]

  @property
  def names(self) -> rows_lib.ColumnNames:
    """Of the columns of encoded rows."""
    return rows_lib.ColumnNames(
      self.labels,
      tuple(c.name for c in self.single),
      tuple(c.name for c in self.numeric),
      tuple((h, tuple(c.name for c in x)) for h, x in self.histories.items()),
    )

  @property
  def sources(self) -> list[str]:
    """The columns that features read, each once."""
    return list(dict.fromkeys(s for c in self.columns for s in c.sources))

  @property
  def everything(self) -> list[str]:
    """Those, the labels, the group and the other annotations."""
    group = [self.group] if self.group else []
    beside = self.annotations.columns.values()
    return list(dict.fromkeys([*self.sources, *self.labels, *group, *beside]))

  def to_json(self) -> dict:
    """Every option; without annotations as it was before there were any."""
    written = dataclasses.asdict(self)
    del written['annotations']
    written['columns'] = [column.to_json() for column in self.columns]
    beside = self.annotations.to_json()
    return written | ({'annotations': beside} if beside else {})


# Options younger than the first files with columns -> their defaults.
_NEWER = {
  'keep': '', 'weights': '', 'clip': 0.0, 'train_unseen': None, 'history': '',
}  # fmt: skip


def check_share(share: object, key: str) -> None:
  """Refuses what is no share of values that may be read as unseen."""
  if not _is_between(share, 0, 1):
    raise ValueError(
      f'{key} must be a number, at least 0 and less than 1, not {share!r}'
    )


def _is_between(value: object, least: float, limit: float) -> bool:
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  return is_number and least <= value < limit


_OPTIONS = [f.name for f in dataclasses.fields(Column) if f.name != 'name']


def label_names(cfg: Mapping) -> tuple[str, ...]:
  """The columns of the labels that `config.data` names."""
  labels = cfg.get('labels', ('label',))
  labels = (labels,) if isinstance(labels, str) else tuple(labels)
  if not labels:
    raise ValueError('data.labels is empty; name the column of the label')
  return labels


def list_columns(cfg: Mapping) -> list[str]:
  """The columns that `config.data` names, whatever they are.

  >>> list_columns({'features': {'a': {}, 'b': {'column': 'c'}}, 'group': 'g'})
  ['label', 'a', 'c', 'g']
  """
  labels = label_names(cfg)
  split = dict(cfg.get('split', None) or {})
  columns = [*labels]
  for name, options in dict(cfg.get('features', None) or {}).items():
    options = {} if isinstance(options, str | None) else dict(options)
    columns += [options.get('column') or name, options.get('weights')]
  beside = annotations_lib.build_annotations(cfg, labels).columns
  columns += [cfg.get('group'), split.get('column'), *beside.values()]
  return list(dict.fromkeys(filter(None, columns)))


def build_columns(
  cfg: Mapping, defaults: Mapping[str, Mapping] | None = None
) -> list[Column]:
  """The features that `config.data` asks for, whatever the files are.

  Args:
    cfg: `config.data`.
    defaults: feature -> options, where `cfg.features` is empty.
  """
  features = cfg.get('features', None) or defaults or {}
  columns = []
  for name, options in features.items():
    if not isinstance(options, str) and not hasattr(options, 'keys'):
      raise ValueError(
        f'data.features.{name} is {quote(options)}, must be a kind, or '
        f'options such as data.features.{name}.kind'
      )
    options = {'kind': options} if isinstance(options, str) else dict(options)
    for key in options:
      if key not in _OPTIONS:
        raise ValueError(
          f'data.features: {key!r} is not an option of {name!r}; the options '
          f'are {", ".join(_OPTIONS)}' + hint_nearest(key, _OPTIONS)
        )
    if 'fill' in options:  # the command line makes a number of 0
      options['fill'] = str(options['fill'])
    transform = options.get('transform', cfg.get('numeric', 'as_is'))
    is_number = options.get('kind') in ('numeric', 'numeric_sequence')
    is_scored = is_number and transform == 'standardize'
    column = Column(
      **{
        'name': name,
        'transform': transform,
        'clip': cfg.get('clip', 0.0) if is_scored else 0.0,
        'min_count': cfg.get('min_count', 1),
        'oov': cfg.get('oov', 'row'),
        'hash_rows': cfg.get('hash_rows', 0),
        **options,
      }
    )
    columns.append(column)
  history_rules.check_tables(columns)
  return columns


def build_schema(
  cfg: Mapping,
  names: Sequence[str],
  defaults: Mapping[str, Mapping],
  where: str,
) -> Schema:
  """The schema that `config.data` asks for.

  Args:
    cfg: `config.data`.
    names: columns of the raw files, in order; features take their order.
    defaults: feature -> options, where `cfg.features` is empty.
    where: the file, for messages.

  Returns:
    The schema; every column it names is in the files.
  """
  labels = label_names(cfg)
  columns = build_columns(cfg, defaults)
  beside = annotations_lib.build_annotations(cfg, labels)
  schema = Schema(tuple(columns), labels, cfg.get('group', ''), beside)
  for key, wanted in (
    ('data.labels', schema.labels),
    ('data.features', schema.sources),
    ('data.group', [schema.group] if schema.group else []),
    *((key, [column]) for key, column in beside.columns.items()),
  ):
    for name in wanted:
      if name not in names:
        # Here alone: a server reads no files.
        from genrec_jax.data import csv_layout

        raise ValueError(
          f'{where}: no column {name!r} ({key}); the columns are '
          f'{list_names(names)}' + csv_layout.hint_column(name, names)
        )
  # A config forgets the order of its keys; the file has one.
  place = {name: i for i, name in reversed(list(enumerate(names)))}
  ordered = sorted(columns, key=lambda c: (place[c.source], c.name))
  return dataclasses.replace(schema, columns=tuple(ordered))
