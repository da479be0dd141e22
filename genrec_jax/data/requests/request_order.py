"""In which order requests are trained on."""

import functools

import grain
import numpy as np

from genrec_jax.data.requests import requests

ORDERS = ('shuffled', 'given', 'stream')


class RequestOrder(grain.MapDataset):
  """(epoch, numbers of requests) of batch number i; of epoch i // steps.

  A run is a series of requests that are shuffled together, and which no batch
  leaves: the whole split, or a step of a stream.
  """

  def __init__(
    self, split: requests.Requests, batch_size: int, order: str, seed: int
  ):
    super().__init__()
    if order not in ORDERS:
      raise ValueError(
        f'the order of requests is {order!r}, must be one of '
        f'{", ".join(ORDERS)}'
      )
    self._batch_size, self._kind, self._seed = batch_size, order, seed
    self._numbers = np.flatnonzero(np.diff(split.offsets))
    self.steps, self._bounds = np.zeros(1, int), [0, len(self._numbers)]
    if order == 'stream':
      if split.step is None:
        raise ValueError(
          "these requests have no steps for the order 'stream' to go by; use "
          "the order 'shuffled'"
        )
      self.steps, first = np.unique(
        split.step[self._numbers], return_index=True
      )
      self._bounds = [*first.tolist(), len(self._numbers)]
    self.ends = np.cumsum(-(-np.diff(self._bounds) // batch_size))
    self._order = functools.lru_cache(2)(self._make_order)

  def __len__(self) -> int:
    return int(self.ends[-1]) if len(self.ends) else 0

  def _make_order(self, epoch: int, run: int) -> np.ndarray:
    numbers = self._numbers[self._bounds[run] : self._bounds[run + 1]]
    if self._kind == 'given':
      return numbers
    # As a word: steps may be negative, seeds may not.
    step = int(self.steps[run]) & 0xFFFFFFFF
    return np.random.default_rng([self._seed, epoch, step]).permutation(numbers)

  def __getitem__(self, index: int) -> tuple[int, np.ndarray]:
    epoch, batch = divmod(index, len(self))
    run = int(np.searchsorted(self.ends, batch, 'right'))
    first = (batch - (self.ends[run - 1] if run else 0)) * self._batch_size
    return epoch, self._order(epoch, run)[first : first + self._batch_size]


def steps_per_epoch(
  split: requests.Requests, batch_size: int, order: str = 'shuffled'
) -> int:
  """Batches of an epoch; each step of a stream has whole ones of its own."""
  return len(RequestOrder(split, batch_size, order, 0))


def find_step_ends(split: requests.Requests, batch_size: int) -> dict[int, int]:
  """Step of a stream -> batches of an epoch up to its end.

  After so many batches of `train_batches` with order='stream' a model has
  learned this step and none of the next. Steps without anything to learn are
  left out.
  """
  order = RequestOrder(split, batch_size, 'stream', 0)
  return dict(zip(order.steps.tolist(), order.ends.tolist(), strict=True))
