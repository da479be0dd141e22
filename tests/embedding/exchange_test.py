"""Route, fetch and push on one stack, and what their programs send."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from benchmarks import hlo
from genrec_jax.embedding.exchange import KINDS, Exchange
from genrec_jax.embedding.layout import lay_out
from genrec_jax.embedding.plan import ShardingPlan, TablePlan
from genrec_jax.embedding.row_exchange import fetch_rows, push_gradients
from genrec_jax.embedding.row_routes import route_addresses
from genrec_jax.numerics.formats import extend_formats
from genrec_jax.parallel import codecs
from genrec_jax.parallel import mesh as mesh_lib
from tests.numerics.power_format import POWER8
from tests.tolerances import assert_close

W, ROWS, DIM, NEEDED = 8, 160, 16, 64
SPEC = PartitionSpec(mesh_lib.AXES)
PLAN = ShardingPlan(
  {'t': TablePlan(ROWS, DIM, 'row_wise', split='block')}, 2, 4
)
(STACK,) = lay_out(PLAN).stacks.values()
(PIECE,) = STACK.pieces
# Of the formats of FBGEMM and of blocks, which are codecs like the others,
# some.
NARROW = [
  'float16', 'bfloat16', 'fp8', 'int8', 'fbgemm_int4', 'fbgemm_mx4', 'mx6',
]  # fmt: skip
PAYLOAD = {name: 'u8' for name in NARROW} | {
  'float16': 'u16',
  'bfloat16': 'u16',
}


@functools.cache
def programs(exchange, repeats=1):
  """Jitted route, fetch and push; every array has devices in front."""

  def mapped(fn):
    def on_device(*args):
      found = fn(*jax.tree.map(lambda x: x[0], args))
      return jax.tree.map(lambda x: x[None], found)

    return jax.jit(
      jax.shard_map(
        on_device,
        mesh=mesh_lib.make_mesh(1, 2, 4),
        in_specs=SPEC,
        out_specs=SPEC,
        check_vma=False,
      )
    )

  return (
    mapped(
      lambda ids: route_addresses(
        exchange, STACK, STACK.locate(PIECE, ids), repeats
      )
    ),
    mapped(lambda r, a: fetch_rows(exchange, STACK, r, a)),
    mapped(
      lambda r, g: push_gradients(
        exchange, STACK, r, g, (), collect, jax.tree.map(jnp.asarray, NOTHING)
      )
    ),
  )


class Collected(NamedTuple):
  """What a device was told to apply."""

  sums: jax.Array  # [depth, DIM]
  times: jax.Array  # [depth] how often each row was to move
  rounds: jax.Array


NOTHING = Collected(
  np.zeros((STACK.depth, DIM), np.float32),
  np.zeros(STACK.depth, np.int32),
  np.int32(0),
)


def collect(so_far, merged):
  return Collected(
    so_far.sums.at[merged.ids].add(merged.grads, mode='drop'),
    so_far.times.at[merged.ids].add(1, mode='drop'),
    so_far.rounds + 1,
  )


def table(seed=0):
  """(rows, the array that holds them, device by device)."""
  rows = np.random.default_rng(seed).normal(size=(ROWS, DIM))
  rows = rows.astype(np.float32)
  array = np.zeros((W, STACK.depth, DIM), np.float32)
  array[:, : ROWS // W] = rows.reshape(W, -1, DIM)
  return rows, array


def distinct(rng, most=ROWS):
  """Ids that each device needs: distinct, some of no row."""
  ids = np.full((W, NEEDED), ROWS, np.int32)
  for device in range(W):
    some = rng.choice(most, min(most, NEEDED - device), replace=False)
    ids[device, : len(some)] = some
  ids[0, -1], ids[0, -2] = -1, ROWS + 5
  return rng.permuted(ids, axis=1)


def read(rows, ids):
  inside = (ids >= 0) & (ids < ROWS)
  return np.where(inside[..., None], rows[np.where(inside, ids, 0)], 0)


def summed(ids, grads):
  found = np.zeros((ROWS, DIM))
  inside = (ids >= 0) & (ids < ROWS)
  np.add.at(found, ids[inside], grads[inside].astype(np.float64))
  return found


def spread(collected):
  """What all devices applied -> `[ROWS, DIM]`; each row at most once."""
  assert np.max(collected.times) <= 1
  assert not np.any(np.asarray(collected.times)[:, ROWS // W :])
  return np.asarray(collected.sums)[:, : ROWS // W].reshape(ROWS, DIM)


@pytest.mark.parametrize('kind', KINDS)
def test_there_and_back(kind):
  route, fetch, push = programs(Exchange(kind, capacity=8.0))
  rng = np.random.default_rng(1)
  rows, array = table()
  ids = distinct(rng)
  routed = route(ids)
  assert not np.any(routed.overflow)
  np.testing.assert_array_equal(fetch(routed, array), read(rows, ids))
  grads = rng.normal(size=(W, NEEDED, DIM)).astype(np.float32)
  merged = push(routed, grads)
  assert_close(spread(merged), summed(ids, grads), 'exchanged')


@pytest.mark.parametrize('kind', KINDS)
def test_room_for_more_than_all_could_ask(kind):
  """Each device asks for one row, and a peer has room for at least eight."""
  _, _, push = programs(exchange := Exchange(kind, capacity=9.0))
  ids = np.arange(W, dtype=np.int32)[:, None] * 7
  routed = programs(exchange)[0](ids)
  grads = np.ones((W, 1, DIM), np.float32)
  assert_close(spread(push(routed, grads)), summed(ids, grads), 'exchanged')


@pytest.mark.parametrize('kind', KINDS)
def test_ids_that_are_nowhere(kind):
  """Nobody asks for anything: zeros come, and nothing is added anywhere."""
  route, fetch, push = programs(Exchange(kind, capacity=8.0))
  ids = np.full((W, NEEDED), ROWS, np.int32)
  ids[:, ::2] = -1
  routed = route(ids)
  assert not np.any(routed.overflow)
  np.testing.assert_array_equal(fetch(routed, table()[1]), 0)
  collected = push(routed, np.ones((W, NEEDED, DIM), np.float32))
  assert not np.any(collected.times)


# Three tables of as many rows as an int32 can count: together they have more.
DEEP = ShardingPlan(
  {name: TablePlan(2**31 - 2, DIM, 'row_wise') for name in 'abc'}, 2, 4
)


@pytest.mark.parametrize('kind', KINDS)
def test_rows_beyond_what_one_number_counts(kind):
  """Addresses in an array that nobody could hold here, and who is asked."""
  (stack,) = lay_out(DEEP).stacks.values()
  piece = stack.pieces[-1]
  assert stack.size > 2**32
  ids = np.random.default_rng(5).integers(0, piece.rows, (W, NEEDED))
  ids = ids.astype(np.int32)
  exchange = Exchange(kind, capacity=8.0)

  def route(ids):
    addresses = stack.locate(piece, ids[0])
    asked = route_addresses(exchange, stack, addresses).first_round.asked
    return asked[None]

  routed = jax.jit(
    jax.shard_map(
      route,
      mesh=mesh_lib.make_mesh(1, 2, 4),
      in_specs=SPEC,
      out_specs=SPEC,
      check_vma=False,
    )
  )(ids)
  device, row = np.divmod(stack.index(piece, ids), stack.depth)
  for number, asked in enumerate(np.asarray(routed)):
    found = np.sort(asked[asked < stack.depth])
    np.testing.assert_array_equal(found, np.sort(row[device == number]))


def skewed(rng):
  """Everybody wants the rows of the first device, which are 20."""
  return distinct(rng, ROWS // W)


@pytest.mark.parametrize('kind', ['all_to_all', 'ragged'])
def test_without_room_there_are_rounds(kind):
  exchange = Exchange(kind, capacity=1.0)
  route, fetch, push = programs(exchange)
  rng = np.random.default_rng(2)
  rows, array = table()
  ids = skewed(rng)
  routed = route(ids)
  assert np.all(routed.overflow)  # on each device, also those with room
  peer, room = (20, 8) if kind == 'all_to_all' else (8 * 20, NEEDED)
  np.testing.assert_allclose(routed.fill, peer / room)
  np.testing.assert_array_equal(fetch(routed, array), read(rows, ids))
  grads = rng.normal(size=(W, NEEDED, DIM)).astype(np.float32)
  merged = push(routed, grads)
  assert_close(spread(merged), summed(ids, grads), 'exchanged')
  # 20 rows, all of which everybody wants, in portions of 8.
  np.testing.assert_array_equal(merged.rounds, 3)
  # With room for all the same numbers come the direct way.
  route, _, push = programs(dataclasses.replace(exchange, capacity=8.0))
  assert not np.any(route(ids).overflow)
  np.testing.assert_array_equal(spread(push(route(ids), grads)), spread(merged))


def add_in_order(ids, grads):
  """Sums of float32, device by device, in the order of the addresses."""
  sums = np.zeros((ROWS, DIM), np.float32)
  for device in range(W):
    for i, grad in zip(ids[device], grads[device], strict=True):
      if 0 <= i < ROWS:
        sums[i] += grad
  return sums


@pytest.mark.parametrize('capacity', [1.0, 8.0])
@pytest.mark.parametrize('kind', KINDS)
def test_a_row_may_be_asked_for_by_each_block(kind, capacity):
  """The same bits, whatever the exchange: one sum after the other."""
  blocks = 4
  route, fetch, push = programs(Exchange(kind, capacity), blocks)
  rng = np.random.default_rng(7)
  rows, array = table()
  # Everybody wants the rows of two devices, some of them in every block.
  ids = np.stack(
    [
      np.concatenate(
        [
          rng.choice(2 * ROWS // W, NEEDED // blocks, replace=False)
          for _ in range(blocks)
        ]
      )
      for _ in range(W)
    ]
  ).astype(np.int32)
  routed = route(ids)
  if kind != 'gather':
    assert np.all(np.asarray(routed.overflow) == (capacity == 1.0))
  np.testing.assert_array_equal(fetch(routed, array), read(rows, ids))
  grads = rng.normal(size=(W, NEEDED, DIM)).astype(np.float32)
  collected = push(routed, grads)
  np.testing.assert_array_equal(spread(collected), add_in_order(ids, grads))


@pytest.mark.parametrize('kind', ['all_to_all', 'ragged'])
def test_without_room_an_error_is_seen(kind):
  exchange = Exchange(kind, capacity=1.0, overflow='raise')
  route, fetch, _ = programs(exchange)
  rng = np.random.default_rng(3)
  rows, array = table()
  assert np.all(np.isnan(fetch(route(skewed(rng)), array)))
  ids = distinct(rng)[:, :NEEDED]
  ids[:, :] = ROWS
  ids[:, ::8] = np.arange(0, ROWS, ROWS // W)  # a row of each device
  np.testing.assert_array_equal(fetch(route(ids), array), read(rows, ids))


def sent(compiled, op):
  found = [c for c in hlo.find_collectives(compiled) if c.op == op]
  return {c.dtype for c in found}, sum(hlo.sent_bytes(c) for c in found)


@pytest.mark.parametrize('name', ['float32', *NARROW])
@pytest.mark.parametrize('kind', KINDS)
def test_narrow_rows_are_narrow_on_the_wire(kind, name):
  """As many bytes as the codec says, in unsigned integers, both ways."""
  exchange = Exchange(kind, 2.0, 'raise', forward=name, backward=name)
  route, fetch, push = programs(exchange)
  ids = jax.ShapeDtypeStruct((W, NEEDED), jnp.int32)
  array = jax.ShapeDtypeStruct((W, STACK.depth, DIM), jnp.float32)
  grads = jax.ShapeDtypeStruct((W, NEEDED, DIM), jnp.float32)
  routed = jax.eval_shape(route, ids)
  row = codecs.find_codec(name).row_bytes(DIM)
  counts = {'s32'} if kind == 'ragged' else set()
  offsets = 2 * (W - 1) * 4 if kind == 'ragged' else 0
  # Ragged parts are emulated here, each as large as its whole operand.
  there, back = {
    'gather': (NEEDED, NEEDED),
    'all_to_all': (2 * NEEDED // W, 2 * NEEDED // W),
    'ragged': (2 * NEEDED, NEEDED),
  }[kind]
  ops = 'all-to-all', 'all-to-all'
  if kind == 'gather':
    ops = 'all-to-all', 'all-gather'
  dtypes = {PAYLOAD.get(name, 'f32')} | counts
  program = fetch.lower(routed, array).compile()
  assert sent(program, ops[0]) == (dtypes, (W - 1) * there * row + offsets)
  program = push.lower(routed, grads).compile()
  assert sent(program, ops[1]) == (dtypes, (W - 1) * back * row + offsets)
  total = sum(hlo.sent_bytes(c) for c in hlo.find_collectives(program))
  assert total == (W - 1) * back * row + offsets


def test_gather_brings_ids_to_all_once():
  route, fetch, push = programs(Exchange('gather'))
  ids = jax.ShapeDtypeStruct((W, NEEDED), jnp.int32)
  found = hlo.find_collectives(route.lower(ids).compile())
  assert [(c.op, c.dtype) for c in found] == [('all-gather', 's32')]
  assert hlo.sent_bytes(found[0]) == (W - 1) * NEEDED * 4


def test_further_rounds_are_a_loop_over_the_same_buffers():
  route, fetch, _ = programs(Exchange('all_to_all'))
  routed = jax.eval_shape(route, jax.ShapeDtypeStruct((W, NEEDED), jnp.int32))
  array = jax.ShapeDtypeStruct((W, STACK.depth, DIM), jnp.float32)
  found = hlo.find_collectives(fetch.lower(routed, array).compile())
  rows = [c for c in found if c.dtype == 'f32' and c.op == 'all-to-all']
  first, further = sorted(rows, key=lambda c: c.computation != hlo.ENTRY)
  assert first.computation == hlo.ENTRY != further.computation
  assert hlo.sent_bytes(first) == hlo.sent_bytes(further)


def error_bound(name, values, backward):
  """Of each element, with the largest value of its row."""
  largest = np.max(np.abs(values), axis=-1, keepdims=True)
  relative = {
    'float16': 2.0**-11,
    'bfloat16': 2.0**-8,
    'fp8': 2.0**-3 if backward else 2.0**-4,
    'int8': 1 / 255,  # half a step; from the least to the greatest are two
    'fbgemm_int4': 1.05 / 15,  # scale and bias are of float16
    'fbgemm_mx4': 1 / 4,  # 8 becomes 6, the largest there is
    'mx6': 1 / 8,  # as 2 becomes 15 / 8
  }[name]
  return relative * largest * (1 + 1e-5)


@pytest.mark.parametrize('kind', ['gather', 'all_to_all'])
def test_small_gradients_survive_float16(kind):
  rng = np.random.default_rng(6)
  ids = distinct(rng)
  grads = (1e-9 * rng.uniform(1, 2, (W, NEEDED, DIM))).astype(np.float32)
  found = {}
  for scale in (1.0, 4096.0):
    exchange = Exchange(
      kind, 8.0, 'raise', backward='float16', gradient_scale=scale
    )
    route, _, push = programs(exchange)
    found[scale] = spread(push(route(ids), grads))
  wanted = summed(ids, grads)
  assert wanted.any() and not found[1.0].any()
  np.testing.assert_allclose(found[4096.0], wanted, rtol=8e-3)
  assert Exchange(backward='float16').gradient_codec.scale == 4096
  for name in set(codecs.names()) - {'float16'}:
    assert Exchange(backward=name).gradient_codec.scale == 1
  assert Exchange(forward='float16').row_codec.scale == 1


@pytest.mark.parametrize('name', NARROW)
@pytest.mark.parametrize('kind', ['gather', 'all_to_all'])
def test_narrow_rows_are_close(kind, name):
  exchange = Exchange(kind, 8.0, 'raise', forward=name, backward=name)
  route, fetch, push = programs(exchange)
  rng = np.random.default_rng(4)
  rows, array = table()
  ids = distinct(rng)
  routed, want = route(ids), read(rows, ids)
  error = np.abs(np.asarray(fetch(routed, array)) - want)
  assert np.all(error <= error_bound(name, want, False))
  assert np.any(error > 0)
  grads = rng.normal(size=(W, NEEDED, DIM)).astype(np.float32)
  allowed = np.zeros((ROWS, DIM))  # each part of a sum is rounded once
  inside = (ids >= 0) & (ids < ROWS)
  bound = np.broadcast_to(error_bound(name, grads, True), grads.shape)
  np.add.at(allowed, ids[inside], bound[inside])
  error = np.abs(spread(push(routed, grads)) - summed(ids, grads))
  assert np.all(error <= allowed + 1e-5)
  assert np.any(error > 1e-5)


def test_a_format_of_ones_own_travels_as_the_librarys_do():
  formats = extend_formats({'power8': POWER8})
  exchange = Exchange(
    'all_to_all', 8.0, 'raise', 'power8', 'power8', formats=formats
  )
  route, fetch, push = programs(exchange)
  rng = np.random.default_rng(6)
  rows, array = table()
  ids = distinct(rng)
  routed = route(ids)
  # What arrives is what NumPy makes of the same rows, to the last bit.
  coarse = POWER8.decode(POWER8.encode(rows), DIM)
  np.testing.assert_array_equal(fetch(routed, array), read(coarse, ids))
  grads = rng.normal(size=(W, NEEDED, DIM)).astype(np.float32)
  merged = push(routed, grads)
  coarse = POWER8.decode(POWER8.encode(grads), DIM)
  np.testing.assert_allclose(spread(merged), summed(ids, coarse), atol=1e-5)
  program = fetch.lower(routed, array).compile()
  needed = 8 * NEEDED // W  # rows that a peer has room for
  assert sent(program, 'all-to-all') == (
    {'u8'},
    (W - 1) * needed * (DIM + 1),
  )
  with pytest.raises(ValueError, match="forward is 'power8', must be one of"):
    Exchange(forward='power8')


@pytest.mark.parametrize('name', ['float32', *NARROW])
def test_a_nan_arrives_as_one(name):
  exchange = Exchange('all_to_all', 8.0, 'raise', name, name)
  route, fetch, push = programs(exchange)
  rng = np.random.default_rng(5)
  _, array = table()
  ids = distinct(rng)
  array[2, 7, 3] = np.nan
  wrong = ids == 2 * (ROWS // W) + 7
  found = np.isnan(fetch(route(ids), array))
  assert np.all(found[wrong][:, 3]) and not np.any(found[~wrong])
  assert np.any(wrong)
  grads = rng.normal(size=(W, NEEDED, DIM)).astype(np.float32)
  grads[wrong, 3] = np.nan
  found = np.isnan(spread(push(route(ids), grads)))
  assert found[2 * (ROWS // W) + 7, 3]
  assert {r for r, _ in np.argwhere(found)} == {2 * (ROWS // W) + 7}


@pytest.mark.parametrize(
  'fields, message',
  [
    (dict(kind='ring'), r"exchange.kind is 'ring', must be one of \('gather"),
    (dict(overflow='drop'), r"exchange.overflow is 'drop', must be one of"),
    (dict(forward='fp4'), r"exchange.forward is 'fp4', must be one of"),
    (dict(backward='f32'), r"exchange.backward is 'f32', must be one of"),
    (dict(gradient_scale=1000.0), 'gradient_scale is 1000.0, .* power of two'),
    (dict(capacity=0), 'exchange.capacity is 0, must be positive'),
  ],
)
def test_what_no_exchange_is(fields, message):
  with pytest.raises(ValueError, match=message):
    Exchange(**fields)


def test_an_exchange_is_told_by_its_settings():
  told = repr(Exchange(forward='int8'))
  assert "forward='int8'" in told and 'formats' not in told
