"""Histories in a ranking task: what is read of them, and what a model sees.

A model that reads histories gets their events one by one. To any other one the
sequences of a history are pooled features, as if they were columns of none, so
that the same data train both.
"""

import dataclasses
from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp

import pallas_kernels
from genrec_jax.features import (
  PAD,
  UNREAD,
  Examples,
  Features,
  FeatureSpec,
  History,
  Jagged,
)
from genrec_jax.models import RANKERS
from genrec_jax.models.fields import list_histories


def choose_features(name: str, features: Features) -> tuple[FeatureSpec, ...]:
  """The features as a model sees them.

  Args:
    name: of the model, a key of `RANKERS`.
    features: of the data.

  Raises:
    ValueError: the model reads no histories, and a feature is the numbers of
      one, which nothing pools.
  """
  if RANKERS[name].reads_histories:
    return tuple(features)
  for f in features:
    if f.kind == 'numeric_sequence':
      able = [n for n, model in RANKERS.items() if model.reads_histories]
      raise ValueError(
        f'feature {f.name!r} is the numbers of history {f.history!r}, one an '
        f'event, and model.name={name!r} reads no histories: name all other '
        'features in data.features without it (of data.name=prepared, prepare '
        'the data again without it)'
        + f', or choose a model that does: {", ".join(able)}'
        * bool(able)
      )
  return tuple(dataclasses.replace(f, history='') for f in features)


def refuse_towers(features: Features) -> None:
  """Refuses towers under a model that is given events and no sums of them."""
  for f in features:
    if f.history:
      raise ValueError(
        f'model.towers: feature {f.name!r} is a column of history '
        f'{f.history!r}, which this model reads event by event, and towers '
        'take one vector of each example: leave model.towers out, or choose a '
        'model that pools histories, such as dlrm'
      )


def read_events(events: Jagged, name: str) -> jax.Array:
  """`[K]` ids of a column of a history; `UNREAD` in the padding."""
  ids = events[name]
  owner = pallas_kernels.segment_ids(events.lengths, ids.shape[0])
  return jnp.where(owner < events.lengths.shape[0], ids, UNREAD)


def skip_examples(
  ids: jax.Array, events: Jagged, is_read: jax.Array
) -> jax.Array:
  """The ids `[K]`, `UNREAD` where the example `[B]` is not read."""
  owner = pallas_kernels.segment_ids(events.lengths, ids.shape[0])
  is_read = jnp.asarray(is_read).at[owner].get(mode='fill', fill_value=False)
  return jnp.where(is_read, ids, UNREAD)


def drop_missing(events: Jagged, name: str) -> tuple[jax.Array, jax.Array]:
  """A column of a history as lists without missing values, to be pooled.

  In a history a missing value has its place, and in a list that is pooled
  none: neither a sum nor a mean shall know of it.

  Args:
    events: of the history.
    name: of the column.

  Returns:
    Ids `[K]` with 0 in the padding, and lengths `[B]`.
  """
  ids, size = events[name], events.lengths.shape[0]
  owner = pallas_kernels.segment_ids(events.lengths, ids.shape[0])
  is_there = (owner < size) & (ids != PAD)
  place = jnp.where(is_there, jnp.cumsum(is_there) - 1, ids.shape[0])
  kept = jnp.zeros_like(ids).at[place].set(ids, mode='drop')
  lengths = jax.ops.segment_sum(
    is_there.astype(jnp.int32), owner, size + 1, indices_are_sorted=True
  )
  return kept, lengths[:-1]


def collect_histories(
  features: Features, rows: Mapping, batch: Examples, read: Iterable[str]
) -> dict[str, History]:
  """What a model that reads histories sees of them.

  Args:
    features: as the model sees them.
    rows: a view of each feature that was read.
    batch: the examples.
    read: names of the features that the model has a table for.
  """
  found = {}
  for history, columns in list_histories(features).items():
    events = batch.jagged[history]
    numbers = [f.name for f in columns if not f.has_table]
    capacity = events.columns.values.shape[0]
    found[history] = History(
      vectors={f.name: rows[f.name].all() for f in columns if f.name in read},
      numbers=events.floats.select(numbers)
      if numbers
      else jnp.zeros((capacity, 0), jnp.float32),
      lengths=events.lengths,
      first=events.first,
    )
  return found
