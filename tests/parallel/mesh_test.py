"""Meshes are what was asked for, or the error says the numbers."""

import types

import jax
import numpy as np
import pytest

from genrec_jax.parallel import mesh as mesh_lib


@pytest.mark.parametrize(
  'asked, shape',
  [
    ({}, (1, 1, 8)),
    ({'hosts': 2}, (1, 2, 4)),
    ({'replicas': 2, 'hosts': 2}, (2, 2, 2)),
    ({'replicas': 8}, (8, 1, 1)),
    ({'devices': 2}, (1, 1, 2)),
    ({'replicas': 3, 'devices': 2}, (3, 1, 2)),
  ],
)
def test_the_shape_asked_for(asked, shape):
  mesh = mesh_lib.make_mesh(**asked)
  assert mesh.devices.shape == shape and mesh.axis_names == mesh_lib.AXES
  assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}
  count = int(np.prod(shape))
  assert mesh.devices.ravel().tolist() == jax.devices()[:count]
  assert mesh_lib.count_shards(mesh) == count
  assert (
    mesh_lib.count_shards(mesh, mesh_lib.DEVICE_GROUP) == shape[1] * shape[2]
  )


@pytest.mark.parametrize(
  'asked, words',
  [
    ({'hosts': 3}, r'8 devices .* 1 replicas x 3 hosts: choose '),
    (
      {'hosts': 3, 'devices': 3},
      r'are 9, but there are 8 devices .*: lower parallel.replicas,',
    ),
    ({'replicas': 0}, r'parallel.replicas is 0'),
    ({'devices': 0}, r'parallel.devices is 0'),
  ],
)
def test_counts_that_do_not_fit(asked, words):
  with pytest.raises(mesh_lib.MeshError, match=words):
    mesh_lib.make_mesh(**asked)


def test_a_batch_is_split_in_shard_order():
  mesh = mesh_lib.make_mesh(2, 2)
  x = jax.device_put(np.arange(16), mesh_lib.batch_sharding(mesh))
  parts = [np.asarray(s.data).tolist() for s in x.addressable_shards]
  assert parts == [[2 * i, 2 * i + 1] for i in range(8)]
  x = jax.device_put(np.arange(16), mesh_lib.replicated(mesh))
  assert all(s.data.size == 16 for s in x.addressable_shards)


def fake(process: int, id_: int):
  return types.SimpleNamespace(process_index=process, id=id_)


def test_every_process_gives_equally_many():
  present = [fake(i % 2, i) for i in range(8)]
  chosen = mesh_lib._choose_devices(present, 4)
  assert [(d.process_index, d.id) for d in chosen] == [
    (0, 0),
    (0, 2),
    (1, 1),
    (1, 3),
  ]
  with pytest.raises(
    mesh_lib.MeshError,
    match=r'3 devices .* 2 processes.*parallel.hosts .* multiple of 2 and',
  ):
    mesh_lib._choose_devices(present, 3)
  with pytest.raises(mesh_lib.MeshError, match=r'have \[3, 1\]'):
    mesh_lib._choose_devices([fake(i // 3, i) for i in range(4)], 4)
