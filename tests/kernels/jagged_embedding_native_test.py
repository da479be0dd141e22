"""Which library is loaded, and that all libraries compute the same."""

import logging
import platform
import shlex
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import cache_directory
from pallas_kernels.jagged_embedding import (
  api,
  compiler,
  cpu,
  native,
  prebuilt,
  scores,
)
from tests.kernels.embedding_cases import HERE, inputs, slots
from tests.tolerances import assert_close

pytestmark = pytest.mark.skipif('cpu' not in HERE, reason=str(cpu.why_not()))
KINDS = tuple(prebuilt.KINDS.get(platform.machine(), {}))
# A library of a later FFI: all that XLA asks it before it would call it.
OTHER_FFI = """
#include "xla/ffi/api/c_api.h"
#define HANDLER(name) extern "C" XLA_FFI_Error* name(XLA_FFI_CallFrame* call) {\
  auto* asked = (XLA_FFI_Metadata_Extension*)call->extension_start;            \
  asked->metadata->api_version.major_version = XLA_FFI_API_MAJOR + 1;          \
  asked->metadata->api_version.minor_version = 0;                              \
  return nullptr;                                                              \
}
"""


@pytest.fixture(scope='module')
def libraries(tmp_path_factory):
  """Kind -> its library, as setup.py builds it; and the folder they are in."""
  folder = tmp_path_factory.mktemp('prebuilt')
  return dict(zip(KINDS, prebuilt.build(folder), strict=True))


@pytest.fixture
def fresh(monkeypatch, request, caplog):
  """No library is loaded yet, and what is said is kept."""
  monkeypatch.setattr(native, 'PREFIX', f'{request.node.nodeid}.')
  native._load.cache_clear()
  with caplog.at_level(logging.INFO, 'pallas_kernels'):
    yield caplog
  native._load.cache_clear()


@pytest.fixture
def without_compiler(monkeypatch):
  monkeypatch.delenv('CXX', raising=False)
  monkeypatch.setattr(compiler.shutil, 'which', lambda name: None)


def compute() -> tuple[dict, dict]:
  """Results without a sum of products, and others."""
  case = inputs('narrow')
  bags = case['table'], case['ids'], case['lengths']
  exact = {
    'bag': api.embedding_bag(*bags),
    'gather': api.gather(*bags[:2], lengths=case['lengths']),
    'merge': api.bag_row_gradient(case['grads'], *bags[1:], len(case['table'])),
  }
  # The product of a code and a float16 is exact in float32.
  rng, rows = np.random.default_rng(0), len(case['table'])
  for bits in (8, 4, 2):
    packed = rng.integers(0, 256, (rows, 4 + -(-83 * bits // 8)), np.uint8)
    packed[:, :4] = rng.normal(size=(rows, 2)).astype(np.float16).view(np.uint8)
    exact[f'packed {bits}'] = cpu.packed_bag(
      jnp.asarray(packed), *bags[1:], None, 83, bits, leading=True, half=True
    )
  fused = {
    'weighted': api.embedding_bag(*bags, weights=case['weights']),
    'dots': api.bag_weight_gradient(bags[0], case['grads'], *bags[1:]),
  }
  some = case['ids'][:60].reshape(12, 5)
  fused['scores'], differentiate = jax.vjp(
    lambda q, t: scores.score_rows(q, t, some),
    case['grads'][:12],
    case['table'],
  )
  fused['their gradients'] = differentiate(fused['scores'])
  ids, grads = exact['merge']
  for optimizer, dtype in (
    ('row_adagrad', 'float32'), ('row_adam', 'bfloat16'), ('lamb', 'float16'),
  ):  # fmt: skip
    table = case['table'].astype(dtype)
    options = dict(decay='decoupled', weight_decay=0.01)
    fused[optimizer] = api.update_rows(
      table, slots(table, optimizer, **options), ids, grads, learning_rate=0.1,
      optimizer=optimizer, stochastic_rounding_seed=5, **options,
    )  # fmt: skip
  return exact, fused


@pytest.mark.slow  # compiles four libraries
def test_all_libraries_give_the_same_bits(libraries, monkeypatch):
  """Only those without FMA round otherwise: processors before AVX2."""
  paths = {'native': compiler.make_library(), **libraries}
  best = prebuilt.choose_kind()
  runs = {}
  for kind, path in paths.items():
    if kind in KINDS and KINDS.index(kind) < KINDS.index(best):
      continue  # not for this processor
    monkeypatch.setattr(native, 'PREFIX', f'{kind}.')
    native.register(path, native.PREFIX)
    jax.clear_caches()  # of programs that call another library
    runs[kind] = compute()
  exact, fused = runs.pop('native')
  for kind, (found, rounded) in runs.items():
    jax.tree.map(np.testing.assert_array_equal, found, exact)
    if kind == best:
      jax.tree.map(np.testing.assert_array_equal, rounded, fused)
    for name in ('weighted', 'dots', 'scores', 'row_adagrad'):
      jax.tree.map(
        lambda x, y, name=name: assert_close(x, y, 'float32', name),
        rounded[name],
        fused[name],
      )


@pytest.mark.parametrize(
  'machine, flags, kind',
  [
    ('x86_64', prebuilt._V3, 'x86-64-v3'),
    ('x86_64', f'{prebuilt._V3} avx512f', 'x86-64-v3'),
    ('x86_64', prebuilt._V3.replace('avx2', ''), 'x86-64'),
    ('x86_64', prebuilt._V3.replace('fma', ''), 'x86-64'),
    ('x86_64', '', 'x86-64'),  # there is no /proc
    ('aarch64', '', 'armv8-a'),
    ('riscv64', '', None),
  ],
)
def test_a_processor_gets_the_best_that_it_can_run(
  monkeypatch, machine, flags, kind
):
  monkeypatch.setattr(platform, 'machine', lambda: machine)
  monkeypatch.setattr(
    cache_directory, 'describe_processor', lambda: f'x\nflags : {flags}'
  )
  assert prebuilt.choose_kind() == kind


# What a processor of level 3 has that one of level 2 lacks (x86-64 psABI, table
# of micro-architecture levels), in the words of /proc/cpuinfo: LZCNT is 'abm'
# and OSXSAVE 'xsave'.
LEVEL_3 = (
  'abm',
  'avx',
  'avx2',
  'bmi1',
  'bmi2',
  'f16c',
  'fma',
  'movbe',
  'xsave',
)


@pytest.mark.parametrize('lacking', LEVEL_3)
def test_a_processor_that_lacks_anything_of_level_3_is_of_a_lower_one(
  monkeypatch, lacking
):
  monkeypatch.setattr(platform, 'machine', lambda: 'x86_64')
  flags = {*LEVEL_3}
  monkeypatch.setattr(
    cache_directory, 'describe_processor', lambda: ' '.join(flags)
  )
  assert prebuilt.choose_kind() == 'x86-64-v3'
  flags.remove(lacking)
  assert prebuilt.choose_kind() == 'x86-64'


def test_an_image_without_compiler_takes_what_the_wheel_brings(
  libraries, monkeypatch, fresh, without_compiler
):
  path = libraries[prebuilt.choose_kind()]
  monkeypatch.setattr(prebuilt, 'FOLDER', path.parent)
  for _ in range(2):
    out = api.gather(jnp.ones((10, 4)), jnp.int32([1]), implementation='cpu')
  assert out.shape == (1, 4)
  (record,) = fresh.records
  assert record.getMessage().endswith(f'C++ library, prebuilt: {path.name}')


@pytest.mark.parametrize('harm', ['cut', 'hole', 'no checksum'])
def test_a_damaged_library_is_not_loaded(
  libraries, monkeypatch, tmp_path, fresh, without_compiler, harm
):
  kind = prebuilt.choose_kind()
  whole = libraries[kind]
  path = tmp_path / whole.name
  code = bytearray(whole.read_bytes())
  if harm == 'cut':
    del code[len(code) // 2 :]
  else:
    code[8192:40960] = bytes(32768)
  path.write_bytes(code)
  if harm != 'no checksum':
    checksum = whole.with_suffix(compiler.CHECKSUM).read_text()
    path.with_suffix(compiler.CHECKSUM).write_text(checksum)
  monkeypatch.setattr(prebuilt, 'FOLDER', tmp_path)
  assert native.why_not()
  if harm != 'no checksum':
    assert 'is damaged: install the package again' in fresh.text


def test_sources_that_changed_do_not_take_it(libraries, monkeypatch, fresh):
  path = libraries[prebuilt.choose_kind()]
  monkeypatch.setattr(prebuilt, 'FOLDER', path.parent)
  monkeypatch.setattr(compiler, 'describe_sources', lambda: 'other')
  with pytest.raises(FileNotFoundError, match='made of its sources'):
    prebuilt.find()


def test_on_demand_it_is_compiled_for_this_very_processor(
  libraries, monkeypatch, fresh
):
  path = libraries[prebuilt.choose_kind()]
  monkeypatch.setattr(prebuilt, 'FOLDER', path.parent)
  monkeypatch.setenv(native.SWITCH, 'native')
  assert native.why_not() is None
  assert 'C++ library, compiled here: ' in fresh.text


@pytest.fixture
def other_ffi(monkeypatch, tmp_path):
  """The prebuilt library is of an FFI that this JAX does not speak."""
  source, path = tmp_path / 'other.cc', tmp_path / 'other.so'
  handlers = ''.join(f'HANDLER({name})\n' for name in native.TARGETS)
  source.write_text(OTHER_FFI + handlers)
  command = (*shlex.split(compiler._find()), '-shared', '-fPIC', str(source))
  include = f'-I{jax.ffi.include_dir()}'
  subprocess.run([*command, include, '-o', str(path)], check=True)
  monkeypatch.setattr(prebuilt, 'find', lambda: path)


def test_a_library_of_another_ffi_is_compiled_anew(other_ffi, fresh):
  assert native.why_not() is None
  assert "compiled here: " in fresh.text and 'API version' in fresh.text


def test_and_without_compiler_xla_runs_and_says_why(
  other_ffi, fresh, without_compiler
):
  out = api.gather(jnp.ones((10, 4)), jnp.int32([1]))
  assert out.shape == (1, 4)
  (record,) = fresh.records
  assert record.levelno == logging.WARNING
  for words in ('plain XLA', 'API version', 'none of c++', 'wheel'):
    assert words in record.getMessage()


def test_a_wheel_names_the_oldest_system_it_runs_on(tmp_path, monkeypatch):
  monkeypatch.setattr(platform, 'machine', lambda: 'x86_64')
  path = tmp_path / 'x.so'
  path.write_bytes(b'\0GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.4\0')
  assert prebuilt.platform_tag([path]) == 'manylinux_2_34_x86_64'
  path.write_bytes(b'')  # another C library
  assert prebuilt.platform_tag([path]) == 'linux_x86_64'
