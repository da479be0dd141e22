"""Chooses the backend of an operator, and refuses aloud what cannot run."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping

import jax

log = logging.getLogger('pallas_kernels')


def _runs_anywhere() -> None:
  return None


@dataclasses.dataclass(frozen=True)
class Backend:
  """One way to compute an operator.

  Attributes:
    run: the function.
    why_not: says why it cannot run on this machine, None where it can.
    automatic: whether it may be chosen without being asked for by name.
    platforms: where it is expected to run, so that its absence is told.
  """

  run: Callable
  why_not: Callable[[], str | None] = _runs_anywhere
  automatic: bool = True
  platforms: tuple[str, ...] = ()


@functools.cache
def _warn_once(text: str) -> None:
  log.warning(text)


def choose(
  op: str, backends: Mapping[str, Backend], implementation: str | None = None
) -> Callable:
  """Returns the function of the backend named `implementation`.

  Args:
    op: name of the operator, for the error message.
    backends: name -> backend, the one to prefer first.
    implementation: a name, or None for the first that can run here.

  Raises:
    NotImplementedError: no backend of that name exists, or it cannot run here.
  """
  if implementation is None:
    # In their order: the first that may be chosen and can run is the best.
    for name, backend in backends.items():
      if not backend.automatic:
        continue
      reason = backend.why_not()
      if reason is None:
        return backend.run
      if platform() in backend.platforms:
        _warn_once(f'{op} runs without {name!r}, which is faster: {reason}')
    raise NotImplementedError(f'{op} has no implementation for this machine.')
  if implementation not in backends:
    raise NotImplementedError(
      f'{op} has no implementation {implementation!r}; there are '
      f'{", ".join(backends)} (or None for the best of them here).'
    )
  # A backend asked for by name is never replaced by another one.
  reason = backends[implementation].why_not()
  if reason is not None:
    raise NotImplementedError(
      f'{op}: implementation {implementation!r} cannot run here: {reason}'
    )
  return backends[implementation].run


def needs_platform(*platforms: str) -> Callable[[], str | None]:
  """A `why_not` for backends of certain devices ('tpu', 'cuda', 'cpu')."""

  def why_not() -> str | None:
    here = platform()
    if here in platforms:
      return None
    return f'it needs {" or ".join(platforms)}, JAX runs on {here} here.'

  return why_not


# (platform, kind, compute capability) of the device that is compiled for; None:
# the default device.
_elsewhere: tuple[str, str, str | None] | None = None


@contextlib.contextmanager
def compiling_for(
  platform: str, device_kind: str, compute_capability: str | None = None
) -> Iterator[None]:
  """Chooses backends and block sizes as a machine with that device would.

  For compilation ahead of time: what is traced inside cannot run here.

  Args:
    platform: 'tpu', 'cuda', 'rocm' or 'cpu'.
    device_kind: as JAX names it there, such as 'TPU v5e'.
    compute_capability: of a GPU of NVIDIA's, such as '9.0'.
  """
  global _elsewhere
  before = _elsewhere
  _elsewhere = platform, device_kind, compute_capability
  try:
    yield
  finally:
    # Also after an error, and to the outer scope if scopes are nested.
    _elsewhere = before


def platform() -> str:
  """'cpu', 'tpu', 'cuda' or 'rocm': where JAX computes by default."""
  if _elsewhere:
    return _elsewhere[0]
  device = _default_device()
  # JAX calls the GPUs of both vendors so; their kernels differ.
  if device.platform == 'gpu':
    kind = device.client.platform_version.lower()
    return 'rocm' if 'rocm' in kind else 'cuda'
  return device.platform


def device_kind() -> str:
  """The model of the default device, such as 'TPU v5e' or 'cpu'."""
  return _elsewhere[1] if _elsewhere else _default_device().device_kind


def compute_capability() -> str | None:
  """Of the default device, such as '9.0'; None where it is no GPU."""
  if _elsewhere:
    return _elsewhere[2]
  return getattr(_default_device(), 'compute_capability', None)


def _default_device() -> jax.Device:
  # The user may have put the computation elsewhere than on the first device,
  # by the device or by the name of a platform.
  device = jax.config.jax_default_device
  if isinstance(device, str):
    return jax.devices(device)[0]
  return device or jax.devices()[0]


def allows_coarse_products() -> bool:
  """Whether the user's setting lets kernels multiply float32 with fewer bits.

  JAX's own default does not count: on an accelerator it would always do so.
  """
  precision = jax.config.jax_default_matmul_precision
  return precision in ('tensorfloat32', 'bfloat16', 'fastest')
