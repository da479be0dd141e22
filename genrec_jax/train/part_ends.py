"""The ends of the parts of a growing directory, as the training loop sees them.

The state of the data says after each batch where it stands, behind exactly this
batch however far is read ahead. So a step ends a part in a run that continues
where it did in the run that was lost.
"""

import logging
from collections.abc import Mapping

from genrec_jax.config import ConfigError
from genrec_jax.data.part_place import PartPlace, locate_part
from genrec_jax.data.quoting import quote

LOG = logging.getLogger('genrec_jax')


def name_stream(config) -> str:
  """`data.stream.directory`; '' for a run whose data do not grow."""
  return (config.data.get('stream') or {}).get('directory', '')


class PartEnds:
  """Whether the present step ends a part, and what that means.

  Attributes:
    place: of the batch that was taken last.
  """

  def __init__(self, config, batches):
    """Reads the config.

    Args:
      config: of the run.
      batches: iterator of the batches that are trained on.
    """
    self._saves = config.checkpoint.get('at_part_ends', False)
    self._windows = config.eval.get('progressive_windows', 'log') == 'part'
    self._grows, self._batches = bool(name_stream(config)), batches
    self.place = PartPlace()

  def observe(self, step: int | None = None) -> None:
    """Takes the place of the batch that was taken last.

    Args:
      step: that was made of it, for the log; None leaves that out.
    """
    if not self._grows:
      return
    self.place = locate_part(self._batches.get_state())
    if self.place.is_end and step is not None:
      LOG.info('stream: %s ends with step %d', self.place.name, step)

  @property
  def is_end_to_save(self) -> bool:
    """Whether a checkpoint is due because a part has ended."""
    return self._saves and self.place.is_end

  @property
  def is_end_of_window(self) -> bool:
    """Whether a window of progressive metrics ends with a part here."""
    return self._windows and self.place.is_end

  @property
  def cuts_windows(self) -> bool:
    """Whether such windows end with parts, and not with lines of the log."""
    return self._windows

  def number(self) -> dict[str, int]:
    """Which part a window of progressive metrics is of; {} for no part.

    A part of which nothing is learned from leaves no window, so that their
    order alone does not tell.
    """
    return {'part': self.place.number} if self.is_end_of_window else {}

  def describe(self) -> dict:
    """The place, for those who read checkpoints; {} without a stream."""
    return {'part': self.place.to_json()} if self._grows else {}


def check_settings(config) -> None:
  """Refuses settings of part ends where no parts are trained on.

  Args:
    config: of the run.
  """
  windows = config.eval.get('progressive_windows', 'log')
  asked = {'checkpoint.at_part_ends': True, 'eval.progressive_windows': 'part'}
  values = (config.checkpoint.get('at_part_ends', False), windows)
  for (key, value), now in zip(asked.items(), values, strict=True):
    if now == value and not name_stream(config):
      raise ConfigError(
        f'{key} is {now!r}, and there are no parts: set data.stream.directory '
        'to a growing directory, or leave the key out'
      )
  if windows == 'part' and config.eval.get('progressive', 'none') == 'none':
    raise ConfigError(
      "eval.progressive_windows is 'part', and eval.progressive='none' "
      "measures no windows: set it to 'window' or 'lifetime'"
    )


def check_stream(config: Mapping, falls: bool) -> None:
  """Refuses settings of a ranking run that a growing directory leaves open.

  Args:
    config: of the run.
    falls: whether a learning rate falls until the end of the run.
  """
  directory, train = name_stream(config), config.train
  if not directory:
    return
  if not (train.checkpoint_every or config.checkpoint.at_part_ends):
    raise ConfigError(
      'train.checkpoint_every or checkpoint.at_part_ends must be set where '
      f'data.stream.directory is {quote(directory)}: a stream has no epochs'
    )
  if falls and not train.steps:
    raise ConfigError(
      'train.steps must be set where data.stream.directory is '
      f'{quote(directory)} and optimizer.schedule lowers a rate until the end '
      'of the run, which is not known; or set optimizer.decay_steps'
    )
