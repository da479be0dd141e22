"""What tokens of requests are made of, and where they stand."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import gr_requests
from genrec_jax.config.request_models import STU
from genrec_jax.features import FeatureSpec, Jagged, stack_columns
from genrec_jax.models import request_positions, request_tokens
from genrec_jax.models.request_actions import mark_watch_times
from genrec_jax.models.request_sequences import lay_out

EVENTS, CANDIDATE_COUNTS = (5, 0, 14, 1), (2, 3, 5, 1)
ROOM = 24, 14


def pack():
  requests = [
    gr_requests.draw(*sizes, seed)
    for seed, sizes in enumerate(zip(EVENTS, CANDIDATE_COUNTS, strict=True))
  ]
  return gr_requests.pack(requests, gr_requests.SPEC, *ROOM)


def test_an_event_is_read_where_its_action_stands():
  layout = lay_out(pack(), 2, 2, 1)
  expected, start = [], 0
  for events, asked in zip(EVENTS, CANDIDATE_COUNTS, strict=True):
    expected += [start + 2 + 2 * i + 1 for i in range(events)]
    start += 2 + 2 * events + asked
  found = layout.find_events()
  np.testing.assert_array_equal(found[: len(expected)], expected)
  assert np.all(found[len(expected) :] == 4 * 2 + 2 * ROOM[0] + ROOM[1])


def test_context_counts_by_the_history_alone():
  batch = pack()
  events = batch.jagged['history'].lengths
  both = events + batch.jagged['candidates'].lengths
  for least in (1, 5, 6, 15):
    alone = request_tokens.has_context(batch, least)
    np.testing.assert_array_equal(alone, events >= least)
    published = request_tokens.has_context(batch, least, True)
    np.testing.assert_array_equal(published, both >= least)


def test_what_is_missing_is_a_row_and_an_unused_slot_is_none():
  tags = FeatureSpec('tag', 'multi_hot', rows=3, max_len=2)
  context = (FeatureSpec('age', rows=3), tags)
  spec = dataclasses.replace(gr_requests.SPEC, context=context)
  ids = {'age': [0, 2, 0, 1], 'tag.0': [1, 0, 2, 0], 'tag.1': [0, 0, 1, 2]}
  requests = [
    gr_requests.draw(events, 1, 0, spec)._replace(
      context={name: column[n] for name, column in ids.items()}
    )
    for n, events in enumerate((7, 7, 7, 2))
  ]
  batch = gr_requests.pack(requests, spec, 30, 9)
  tables = {name: np.arange(1.0, 4)[:, None] for name in ('age', 'tag')}
  rows = {
    f'context.{name}': jnp.asarray(tables[name.split('.')[0]][column])
    for name, column in ids.items()
  }
  config = STU(min_context_events=5)
  found = request_tokens.read_context(rows, batch, spec, config)
  assert [x[:, 0].tolist() for x in found] == [
    # The last history is too short.
    [1, 3, 1, 0], [2, 0, 3, 0], [0, 0, 2, 0],
  ]  # fmt: skip


def test_a_watch_time_reaches_its_threshold():
  floats = stack_columns({'watch_time': [29.9, 30.0, 60.0]}, 'float32')
  columns = stack_columns({'action': [1, 1, 2]}, 'int32')
  history = Jagged(columns, jnp.array([3]), floats)
  marked = mark_watch_times(history, ((30, 4), (50, 1)))
  assert marked.tolist() == [1, 5, 7]


@pytest.mark.parametrize('function', ['sqrt', 'log'])
def test_ages_have_the_buckets_of_the_formula(function):
  edges = request_positions.list_edges(2048, function)
  ages = np.unique([0, 1, 59, *edges - 1, *edges, *edges + 1, 2**31 - 1])
  minutes = np.maximum(ages, 1e-6) / 60
  formula = np.sqrt(minutes) if function == 'sqrt' else np.log(minutes)
  expected = np.clip(formula.astype(int), 0, 2048)
  found = request_positions.find_buckets(jnp.asarray(ages, jnp.int32), edges)
  np.testing.assert_array_equal(found, expected)
