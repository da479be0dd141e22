"""Which old workdirs there are, and the commands that made them."""

import dataclasses
import pathlib
import tarfile

CONFIG = pathlib.Path(__file__).with_name('config.py')
FILES = pathlib.Path(__file__).with_name('a521de1')  # written by this commit
STOP, STEPS = 5, 9  # SIGTERM behind this step; the last step of a whole run


def open_workdir(name: str) -> tarfile.TarFile:
  """The archive of an old workdir."""
  archive = tarfile.open(FILES / f'{name}.tar.gz')
  # Python 3.11.2 and 3.11.3 know no filters, and take the attribute for any.
  archive.extraction_filter = getattr(tarfile, 'data_filter', None)
  return archive


@dataclasses.dataclass(frozen=True)
class Kind:
  """A workdir.

  Attributes:
    config: variant of config.py.
    path: what `data.path` names, below the directory data/; '' for generated
      data.
    flags: the other keys that were set on the command line.
    lossless: whether a run continued from its checkpoint is the run that
      nothing interrupted; not so where weights were rounded to few bits.
  """

  config: str
  path: str = ''
  flags: tuple[str, ...] = ()
  lossless: bool = True


_ROWS = 'data.table_update=row_adagrad'
_MESH = ('parallel.hosts=2', 'parallel.devices=4')
_CSV = ('data.name=csv', 'loss.name=bce')

KINDS = {
  'hstu_dense': Kind('hstu', 'histories', ('data.name=histories',)),
  'sasrec_rows': Kind('sasrec', 'events.csv', (*_CSV, _ROWS)),
  'hstu_mesh': Kind(
    'hstu',
    'histories',
    (
      'data.name=histories',
      'train.batch_size=8',
      'parallel.scheme=row_wise',
      'parallel.dense=fsdp',
      _ROWS,
      *_MESH,
    ),
  ),
  # A base and two deltas; and what readers follow.
  'sasrec_chain': Kind(
    'sasrec',
    'events.csv',
    (
      *_CSV,
      _ROWS,
      'checkpoint.policy=consecutive',
      'checkpoint.bits=8',
      'checkpoint.slots=float16',
      'checkpoint.publish.every=2',
      'checkpoint.publish.bits=4',
    ),
    lossless=False,
  ),
  'dlrm_dense': Kind('dlrm', 'prepared', ('data.name=prepared',)),
  # Rows of all devices in files of rows, with slots of every shape.
  'wukong_mesh': Kind(
    'wukong',
    '',
    (
      'data.table_update=adam',
      'parallel.scheme=table_wise',
      'checkpoint.policy=intermittent',
      *_MESH,
    ),
  ),
}

# Raw file -> (variant of config.py, flags, directory of what was made of it).
PREPARED = {
  'events.csv': ('sasrec', ('data.name=csv',), 'histories'),
  'examples.csv': (
    'dlrm',
    (
      'data.name=csv',
      'data.group=user',
      'data.block_rows=32',
      'data.features.user.min_count=2',
      'data.features.country.vocabulary=hashed',
      'data.features.country.hash_rows=5',
      'data.features.price.kind=numeric',
      'data.features.price.transform=log',
      'data.features.age.kind=numeric',
      'data.features.age.transform=standardize',
      'data.features.tags.kind=multi_hot',
      'data.features.tags.pooling=mean',
      'data.features.seen.kind=sequence',
      'data.features.seen.max_len=4',
    ),
    'prepared',
  ),
}


def raw_file(kind: Kind) -> str:
  """The file in data/ from which the kind's data were once made; or ''."""
  made = {directory: raw for raw, (_, _, directory) in PREPARED.items()}
  return made.get(kind.path, kind.path)


def flags(kind: Kind, data: str) -> list[str]:
  """`a.b=value` of the command line, the data lying in the directory `data`."""
  path = [f'data.path={data}/{kind.path}'] if kind.path else []
  return [*kind.flags, *path]
