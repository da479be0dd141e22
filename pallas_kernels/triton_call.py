"""Runs Triton kernels from JAX: a launch as data, and jax-triton's versions."""

import dataclasses
import functools
import importlib
import importlib.metadata
import importlib.util
import inspect
import re
from collections.abc import Callable, Hashable

import jax

from pallas_kernels import dispatch, manual_axes

INSTALL = "pip install 'genrec_jax[gpu]'"
LEAST_CAPABILITY = (8, 0)  # earlier chips lack bfloat16 and shared memory
LEAST_JAX_TRITON = 0, 3, 1  # as in setup.py


@dataclasses.dataclass(frozen=True)
class Launch:
  """One launch of a kernel.

  A kernel takes its inputs, then its outputs, then the constants as `s`.

  Attributes:
    kernel: name of the kernel.
    grid: number of programs.
    constants: constants that it is compiled for.
    outputs: shapes and dtypes of its outputs.
    warps: warps of each program.
    stages: tiles that are loaded ahead.
    aliases: (input, output) pairs that share their memory: what the kernel
      does not write of such an output is what the input holds. XLA copies an
      input that is needed afterwards, or that belongs to the caller.
  """

  kernel: str
  grid: int
  constants: Hashable
  outputs: tuple[jax.ShapeDtypeStruct, ...]
  warps: int
  stages: int
  aliases: tuple[tuple[int, int], ...] = ()


def why_not() -> str | None:
  """Why Triton kernels cannot run here; a `dispatch.Backend.why_not`."""
  reason = dispatch.needs_platform('cuda', 'rocm')()
  if reason is not None:
    return f'{reason} With a GPU: {INSTALL}'
  # Looked up, not imported: this runs wherever a backend is chosen.
  for package in ('triton', 'jax_triton'):
    if importlib.util.find_spec(package) is None:
      return f'it needs the package {package}: {INSTALL}'
  return _chip_too_old() or _too_old() or _not_importable()


def _chip_too_old() -> str | None:
  capability = dispatch.compute_capability()
  if dispatch.platform() != 'cuda' or capability is None:
    return None
  if _parse_numbers(capability) >= LEAST_CAPABILITY:
    return None
  least = '.'.join(map(str, LEAST_CAPABILITY))
  return (
    f'it needs a GPU of compute capability {least} or more, not {capability}'
  )


@functools.cache
def _too_old() -> str | None:
  """Names the triton that jax-triton wants; it would fail without a word."""
  of_jax = importlib.metadata.version('jax-triton')
  if _parse_numbers(of_jax, 3) < LEAST_JAX_TRITON:
    least = '.'.join(map(str, LEAST_JAX_TRITON))
    return f'it needs jax-triton >= {least}, not {of_jax}: {INSTALL}'
  here = importlib.metadata.version('triton')
  for line in importlib.metadata.requires('jax-triton') or ():
    requirement = re.match(r'triton\s*>=\s*([\d.]+)', line)
    if requirement and _parse_numbers(here) < _parse_numbers(requirement[1]):
      return (
        f'jax-triton {of_jax} needs triton >= {requirement[1]}, not {here}: '
        f"{INSTALL} (or, for triton 3.6, pip install 'jax-triton==0.3.1')"
      )
  return None


def _parse_numbers(version: str, count: int = 2) -> tuple[int, ...]:
  return tuple(int(part) for part in re.findall(r'\d+', version)[:count])


@functools.cache
def _not_importable() -> str | None:
  """Why jax-triton is there and cannot be used: made for another JAX, say."""
  try:
    importlib.import_module('jax_triton')
  except Exception as error:  # whatever its import may raise
    return f'jax_triton cannot be imported ({error!r}): {INSTALL}'
  return None


def run(function: Callable, launch: Launch, *inputs) -> list[jax.Array]:
  """Launches the `triton.jit` function; returns the outputs.

  An output without an alias holds garbage wherever the kernel writes nothing.
  """
  import jax_triton

  _make_removable(jax_triton.triton_lib)
  # 0.4 gave some arguments new names.
  known = inspect.signature(jax_triton.triton_call).parameters
  if 'out_type' in known:
    options = dict(
      out_type=list(launch.outputs), backend_options={'enable_fp_fusion': True}
    )
  else:
    options = dict(out_shape=list(launch.outputs), enable_fp_fusion=True)
  if launch.aliases:
    options['input_output_aliases'] = dict(launch.aliases)
  outputs = jax_triton.triton_call(
    *inputs,
    kernel=function,
    name=launch.kernel,
    # One dimension: the kernels compute sequence, head and block from it.
    grid=(launch.grid, 1, 1),
    num_warps=launch.warps,
    num_stages=launch.stages,
    s=launch.constants,
    **options,
  )
  axes = manual_axes.varying_axes(*inputs)
  return [manual_axes.vary_over(axes, x) for x in outputs]


def _make_removable(triton_lib) -> None:
  """Repairs the rule by which JAX drops kernels whose results nobody reads.

  That of jax-triton 0.4 keeps all of them, and JAX 0.12 calls it with one more
  argument, so that every `jit` fails. 0.3 leaves it to JAX.
  """
  # Looked up by name, since other versions have neither attribute.
  partial_eval = getattr(triton_lib, 'pe', None)
  rules = getattr(partial_eval, 'dce_rules', {})
  if triton_lib.triton_kernel_call_p in rules:
    rules[triton_lib.triton_kernel_call_p] = _remove_unused


def _remove_unused(used, *rest):
  equation = rest[-1]
  # A kernel writes all of its outputs at once: one reader keeps it whole.
  if any(used) or equation.effects:
    return [True] * len(equation.invars), equation
  return [False] * len(equation.invars), None
