"""A training for checkpoint_faults, every state of which can be computed anew.

A step moves rows, their slots and dense weights by random numbers of (step,
life); a life is a process that trains. What a state must be follows from the
lives of its steps, and these are told by the checkpoint: `Run.restore` computes
the state anew and compares every byte. Whose rows of one step come from one
checkpoint and of another step from another one, that is seen.
"""

import jax
import numpy as np

from genrec_jax.checkpoint import delta, manifest
from genrec_jax.checkpoint.manager import CheckpointManager
from genrec_jax.embedding import dirty_rows as dirty_lib
from genrec_jax.embedding import relayout, single_scheme
from genrec_jax.embedding.layout import lay_out
from genrec_jax.features import TableSpec

SPECS = {
  'user': TableSpec('user', 300, 8, 0.5, 'row_adagrad'),
  'item': TableSpec('item', 200, 4, 0.5, 'adam'),
}
STACKS = relayout.find_stacks(
  lay_out(single_scheme.plan_with_scheme(SPECS, 'data_parallel'))
)
MARK = np.uint8(
  dirty_lib.SINCE_SAVE | dirty_lib.SINCE_BASE | dirty_lib.SINCE_PUBLISHED
)
MOVED = 0.25  # of the rows of a table, in a step
CHUNK_ROWS = 128  # several files a table


class State:
  """What a training has after some steps.

  Attributes:
    lives: of its steps.
    arrays: path -> array; scalars among them.
    moved: table -> bool, rows that have moved since they were last forgotten.
  """

  def __init__(self, lives=()):
    self.lives, self.arrays = [], {'dense/w': np.zeros(16, np.float32)}
    for name, spec in SPECS.items():
      shape = spec.rows, spec.dim
      rng = np.random.default_rng(0)
      self.arrays[name] = rng.normal(size=shape).astype(np.float32)
      if spec.update == 'row_adagrad':
        self.arrays[f'{name}/sum'] = np.zeros(spec.rows, np.float32)
      else:
        self.arrays[f'{name}/m'] = np.zeros(shape, np.float32)
        self.arrays[f'{name}/v'] = np.zeros(shape, np.float32)
    self.moved = {n: np.zeros(s.rows, bool) for n, s in SPECS.items()}
    for life in lives:
      self.move(life)
    self.forget_moved()

  def move(self, life: int) -> None:
    """The next step, of this life."""
    self.lives.append(life)
    rng = np.random.default_rng((len(self.lives), life))
    rows = {
      name: rng.choice(spec.rows, int(MOVED * spec.rows), replace=False)
      for name, spec in SPECS.items()
    }
    for path, array in self.arrays.items():
      at = rows.get(path.partition('/')[0], slice(None))
      array[at] = rng.normal(size=array[at].shape)
    for name, mine in rows.items():
      self.moved[name][mine] = True

  def forget_moved(self) -> None:
    for moved in self.moved.values():
      moved[:] = False

  @property
  def step(self) -> int:
    return len(self.lives)

  def slots(self, convert) -> dict[str, dict]:
    """The slots of each table, each converted; with counts of steps."""
    found = {}
    for name, spec in SPECS.items():
      found[name] = {
        path.partition('/')[2]: convert(x)
        for path, x in self.arrays.items()
        if path.startswith(f'{name}/')
      }
      if spec.update == 'adam':
        found[name]['count'] = convert(np.int32(self.step))
    return found


class Run:
  """A process's training, saver and checkpoints."""

  def __init__(
    self,
    directory,
    *,
    life: int = 0,
    keep: int = 2,
    published: bool = False,
    log=lambda line: None,
    **options,
  ):
    """Reads and writes nothing yet.

    Args:
      directory: of the checkpoints.
      life: number of this process.
      keep: how many checkpoints stay.
      published: whether they are for readers.
      log: receives lines.
      **options: of `delta.DeltaOptions`.
    """
    self.checkpoints = CheckpointManager(directory, keep=keep, log=log)
    self._saver = delta.RowSaver(
      self.checkpoints,
      STACKS,
      delta.DeltaOptions(chunk_rows=CHUNK_ROWS, **options),
      published=published,
      log=log,
    )
    self._life = life
    self._begin(State())

  def restore(self, step: int | None = None) -> str | None:
    """Goes on from a checkpoint, None for the newest, if there is one.

    Returns:
      What is not as it was when the checkpoint was made, in words.
    """
    step = self.checkpoints.latest() if step is None else step
    if step is None:
      self._begin(State())
      return None
    place = _Place([])
    dense = {'w': _like(np.zeros(16, np.float32)), 'step': _like(np.int32(0))}
    found, dense, host = self.checkpoints.restore(dense, step=step, data=place)
    like = State()
    arrays = {name: _like(like.arrays[name]) for name in SPECS}
    loaded = self.checkpoints.restore_rows(
      found, STACKS, arrays, like.slots(_like)
    )
    self._saver.note_restore(found)
    wanted = State(host['lives'])
    self._begin(wanted, loaded.dirty_rows)
    pairs = {
      'the step': (found, wanted.step),
      'dense/step': (dense['step'], wanted.step),
      'dense/w': (dense['w'], wanted.arrays['dense/w']),
      'the data iterator': (place.lives, wanted.lives),
    }
    slots = wanted.slots(np.asarray)
    for name in SPECS:
      pairs[name] = loaded.arrays[name], wanted.arrays[name]
      for slot, x in slots[name].items():
        pairs[f'{name}/{slot}'] = loaded.slots[name][slot], x
    for what, (one, other) in pairs.items():
      if not np.array_equal(np.asarray(one), np.asarray(other)):
        return f'step {found}: {what} is not what it was'
    return None

  def train(self, steps: int = 1) -> None:
    for _ in range(steps):
      self.state.move(self._life)

  def save(self) -> None:
    """Begins to save; raises what the save before has met."""
    state = self.state
    dirty_rows = {
      name: _put(self._dirty_rows[name] | MARK * state.moved[name])
      for name in SPECS
    }
    lives = list(state.lives)
    self._dirty_rows = jax.tree.map(
      np.array,
      self._saver.save(
        state.step,
        {
          'w': _put(state.arrays['dense/w']),
          'step': _put(np.int32(state.step)),
        },
        delta.RowTables(
          {name: _put(state.arrays[name]) for name in SPECS},
          state.slots(_put),
          dirty_rows,
        ),
        data=_Place(lives),
        host={'lives': lives},
      ),
    )
    state.forget_moved()

  def _begin(self, state: State, dirty_rows=None) -> None:
    self.state = state
    dirty_rows = dirty_rows or {
      n: np.zeros(s.rows, np.uint8) for n, s in SPECS.items()
    }
    self._dirty_rows = jax.tree.map(np.array, dict(dirty_rows))


def share_programs(directory) -> None:
  """Lets processes read the programs that one of them has compiled."""
  for key, value in {
    'compilation_cache_dir': str(directory / 'programs'),
    'persistent_cache_min_compile_time_secs': 0.0,
    'persistent_cache_min_entry_size_bytes': -1,
  }.items():
    jax.config.update(f'jax_{key}', value)


def newest(directory) -> int:
  """The newest step that has a manifest; 0 where there is none."""
  return max(
    (
      s
      for s in manifest.list_steps(directory)
      if _manifest(directory, s).exists()
    ),
    default=0,
  )


class _Place:
  """A data iterator, which stands at a step."""

  def __init__(self, lives):
    self.lives = lives

  def get_state(self):
    return {'lives': self.lives}

  def set_state(self, state):
    self.lives = state['lives']


def _manifest(directory, step: int):
  return directory / str(step) / manifest.NAME


def _put(x: np.ndarray) -> jax.Array:
  """On the device; without a program, which each process would compile.

  A copy, as an array on a CPU may lie where NumPy's lay, which is to change.
  """
  return jax.device_put(np.array(x))


def _like(x) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(np.shape(x), x.dtype)
