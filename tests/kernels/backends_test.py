"""Which implementation runs, and what the environment may say of it."""

import jax.numpy as jnp
import pytest

import pallas_kernels
from pallas_kernels import dispatch
from pallas_kernels.jagged_embedding import cpu, native


def test_it_says_what_runs_here():
  found = pallas_kernels.list_backends('jagged_embedding')
  best = 'cpu' if cpu.why_not() is None else 'xla'
  assert found[best] == 'runs without being asked for'
  assert found['triton'].startswith('cannot run: it needs cuda or rocm')
  assert found['reference'] == 'runs if it is asked for'
  with dispatch.compiling_for('tpu', 'TPU v5e'):
    of_attention = pallas_kernels.list_backends('hstu_attention')
  assert of_attention['pallas_tpu'] == 'runs without being asked for'
  with pytest.raises(ValueError, match="op is 'gather', must be one of"):
    pallas_kernels.list_backends('gather')


@pytest.mark.parametrize(
  'name, value, message',
  [
    (native.SWITCH, 'xla', "PALLAS_KERNELS_CPU='xla': it can be '0'"),
    (cpu.THREADS, 'abc', "PALLAS_KERNELS_CPU_THREADS='abc' is no number"),
  ],
)
@pytest.mark.skipif(cpu.why_not() is not None, reason='needs C++')
def test_what_the_environment_says_wrongly(monkeypatch, name, value, message):
  monkeypatch.setenv(name, value)
  with pytest.raises(ValueError, match=message):
    pallas_kernels.gather(jnp.ones((3, 2)), jnp.array([1]))
