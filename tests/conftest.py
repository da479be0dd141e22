"""Strict settings for every test; devices are faked before JAX starts.

Most of a session is compiling. All of its processes, workers and trainings
they start, compile quickly rather than well, and into one cache.
`JAX_DISABLE_MOST_OPTIMIZATIONS=0 python -m pytest ...` compiles as users do; a
JAX_COMPILATION_CACHE_DIR of your own is kept and speeds up the next session.
"""

import atexit
import gc
import importlib.metadata
import importlib.util
import os
import shutil
import sys
import tempfile

os.environ.setdefault('JAX_NUM_CPU_DEVICES', '8')
os.environ.setdefault('NPROC', '32')  # fewer threads than devices deadlock
os.environ.setdefault('JAX_PLATFORMS', 'cpu')
if os.environ['JAX_PLATFORMS'] == 'cpu':
  os.environ.setdefault('JAX_DISABLE_MOST_OPTIMIZATIONS', '1')
if os.environ.get('JAX_DISABLE_MOST_OPTIMIZATIONS') == '1':
  # Two fifths of the time. XLA dies of flags that it does not know (any more).
  quick = (
    '--xla_cpu_use_fusion_emitters=false '
    '--xla_cpu_parallel_codegen_split_count=1'
  )
  given = os.environ.get('XLA_FLAGS', '')
  known = importlib.metadata.version('jax').startswith('0.10.')
  # The compiler for TPUs reads the same variable.
  known &= importlib.util.find_spec('libtpu') is None
  if known and quick not in given:
    os.environ['XLA_FLAGS'] = f'{given} {quick}'.strip()
if 'JAX_COMPILATION_CACHE_DIR' not in os.environ:  # else a worker of xdist
  compiled = tempfile.mkdtemp(prefix='compiled-')
  atexit.register(shutil.rmtree, compiled, ignore_errors=True)
  os.environ['JAX_COMPILATION_CACHE_DIR'] = compiled
if sys.dont_write_bytecode:
  # Nothing is left beside the sources, as asked for; but a training would take
  # three seconds more to start if it had to compile all its modules.
  modules = tempfile.mkdtemp(prefix='modules-')
  atexit.register(shutil.rmtree, modules, ignore_errors=True)
  sys.dont_write_bytecode, sys.pycache_prefix = False, modules
  os.environ['PYTHONPYCACHEPREFIX'] = modules
  os.environ.pop('PYTHONDONTWRITEBYTECODE', None)  # or `python -B`
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES', '-1')
# Which line each operation comes from is asked for nowhere here.
os.environ.setdefault('JAX_TRACEBACK_IN_LOCATIONS_LIMIT', '0')
# Of workers and trainings: what the compiler frees is not given back, to be
# cleared and mapped again for the next program.
os.environ.setdefault('MALLOC_TRIM_THRESHOLD_', str(1 << 30))
os.environ.setdefault('MALLOC_MMAP_THRESHOLD_', str(1 << 25))

import jax
import pytest
from absl import flags

# Packages with files of half a minute and more.
LONG = ('e2e', 'train', 'runtime', 'kernels', 'conformance', 'tests')
# Tracing makes many objects and little garbage; looking for it took a tenth of
# the time.
gc.set_threshold(20_000)

jax.config.update('jax_numpy_dtype_promotion', 'strict')
jax.config.update('jax_numpy_rank_promotion', 'raise')
# GPUs would multiply float32 as TF32, in the reference too.
jax.config.update('jax_default_matmul_precision', 'highest')
flags.FLAGS.mark_as_parsed()  # grain's worker processes read absl flags


def pytest_configure(config):
  # An entry that another process is just writing is compiled instead.
  config.addinivalue_line(
    'filterwarnings',
    'ignore:Error reading persistent compilation cache entry',
  )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
  """A file is of one worker: what its tests share is made once."""
  from xdist.scheduler import LoadFileScheduling

  config.option.loadscopereorder = False  # by the number of tests
  return LoadFileScheduling(config, log)


def pytest_collection_modifyitems(items):
  """Long files come first, so that no worker waits for one at the end.

  Those of a package stay together: what they compile is kept until its last.
  """
  items.sort(key=lambda item: item.path.parent.name not in LONG)


def pytest_collection_finish():
  """Tests and modules stay: a search for garbage need not visit them."""
  gc.freeze()


def pytest_runtest_teardown(item, nextitem):
  """Programs of one package are of no use to the next; they take gigabytes."""
  if nextitem is None or nextitem.path.parent != item.path.parent:
    jax.clear_caches()


@pytest.fixture
def key():
  return jax.random.key(0)


@pytest.fixture
def optax_promotes():
  """optax mixes dtypes; everything else stays strict."""
  with jax.numpy_dtype_promotion('standard'):
    yield


@pytest.fixture
def said(caplog):
  """What the run tells its user, as one text."""
  with caplog.at_level('INFO', 'genrec_jax'):
    yield lambda: '\n'.join(r.getMessage() for r in caplog.records)
