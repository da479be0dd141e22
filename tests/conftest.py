"""Strict settings for every test; devices are faked before JAX starts."""

import os

os.environ.setdefault('JAX_NUM_CPU_DEVICES', '8')
os.environ.setdefault('NPROC', '32')  # fewer threads than devices deadlock
os.environ.setdefault('JAX_PLATFORMS', 'cpu')

import jax
import pytest
from absl import flags

jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_numpy_rank_promotion', 'raise')
# GPUs would multiply float32 as TF32, in the reference too.
jax.config.update('jax_default_matmul_precision', 'highest')
flags.FLAGS.mark_as_parsed()  # grain's worker processes read absl flags


@pytest.fixture
def key():
  return jax.random.key(0)
