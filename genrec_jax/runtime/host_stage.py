"""A step with work on the host between the routing of a batch and its rows.

    route (compiled) -> prepare (host) -> fetch and learn (compiled)

A store may keep the rows of a table in host memory or in files. Which rows a
batch needs is known after `route`; before `fetch` the store has to bring them
to the device. No compiled program can wait for that, so the step is compiled in
two halves and the host works in between. Without such a store a step remains
one program.

For tables whose store works on the host, the following is refused: meshes and
`parallel.pipeline`, which run on `MeshRuntime`; evaluations, which read whole
tables (`embedding.local_tables.SingleDeviceEvalRuntime`); checkpoints by rows
and publishing, which mark rows by their number. A full checkpoint holds what
the device holds, which is the array of the store and not the table; the owner
of the store must write the rest. `planning.check_memory` counts such a table as
if the device held all of it.
"""

import dataclasses
from collections.abc import Callable, Mapping

import jax

from genrec_jax.contracts import Store
from genrec_jax.embedding.local_tables import LocalTables
from genrec_jax.embedding.stores import host_tables
from genrec_jax.runtime import saving
from genrec_jax.runtime.state import TrainState
from genrec_jax.runtime.step import Step
from genrec_jax.runtime.views import StepRoutes


class HostStep:
  """`(state, batch) -> (state, loss)` in two programs and a call between them.

  The state is given away, as to a step that is one program.
  """

  def __init__(self, step: Step, prepare: Callable):
    """Compiles nothing yet.

    Args:
      step: whose halves are compiled.
      prepare: (state, `StepRoutes`) -> (state, `StepRoutes`), called on the
        host with the state that `fetch` is about to read.
    """
    self._route, self._prepare = jax.jit(step.route), prepare

    def fetch_and_learn(state, batch, routed, id_states):
      fetched = step.fetch(state, routed)
      return step.learn(state, batch, routed, fetched, id_states)

    self._learn = jax.jit(fetch_and_learn, donate_argnums=0)

  def __call__(self, state: TrainState, batch):
    routed, id_states = self._route(batch, state.step, state.id_states)
    state, routed = self._prepare(state, routed)
    return self._learn(state, batch, routed, id_states)


def prepare_rows(tables: LocalTables, state: TrainState, routed: StepRoutes):
  """Lets the stores of tables bring the rows that a batch reads.

  Args:
    tables: with stores that work on the host.
    state: whose arrays and slots the stores write to.
    routed: what the batch reads.

  Returns:
    (state, routed), as `HostStep` goes on with them.
  """
  arrays, slots, routes = tables.prepare(
    {name: state.tables[name] for name in state.row_opt_state},
    state.row_opt_state,
    routed.routes,
  )
  state = dataclasses.replace(
    state, tables={**state.tables, **arrays}, row_opt_state=slots
  )
  return state, dataclasses.replace(routed, routes=routes)


def compile_step(step: Step, tables: LocalTables) -> Callable:
  """A step as its tables need it: one program, or two with a host stage."""
  if not host_tables(tables.stores):
    return jax.jit(step, donate_argnums=0)
  return HostStep(
    step, lambda state, routed: prepare_rows(tables, state, routed)
  )


def check_one_device(config, stores: Mapping[str, Store]) -> None:
  """Refuses what one device cannot do with stores that work on the host."""
  names = host_tables(stores)
  if names and saving.tracks_dirty_rows(config):
    raise ValueError(
      f'the stores of {", ".join(names)} work on the host, where no rows are '
      'marked as changed; set checkpoint.policy to "" and '
      'checkpoint.publish.every to 0'
    )


def check_mesh(stores: Mapping[str, Store]) -> None:
  """Refuses stores on a mesh, whose devices hold the rows of its plan."""
  if stores:
    raise ValueError(
      f'Extensions.stores names {", ".join(sorted(stores))}; a mesh keeps '
      'rows where its plan says. Train on one device: set parallel.replicas, '
      "hosts, devices and microbatches to 1, parallel.pipeline to 'none' and "
      "parallel.determinism to 'per_mesh', or leave the stores out"
    )
