"""Views of rows that were routed and fetched, as a training step makes them."""

from typing import Any

import jax

from genrec_jax.embedding import lookup
from genrec_jax.embedding.local_tables import LocalTables
from genrec_jax.features import TableSpec


def fetch(tables: dict, reads: dict, pooling: dict | None = None) -> tuple:
  """(fetched rows and sums, function from these to views).

  Args:
    tables: name -> `[V, D]`.
    reads: feature -> `Read`, of one microbatch.
    pooling: feature -> 'rows' or 'sums'.
  """
  specs = {
    n: TableSpec(n, *t.shape, update='row_sgd') for n, t in tables.items()
  }
  local = LocalTables(specs, pooling=pooling or {})

  # Compiled, as in a step: outside, an id that is not a row is refused at once.
  @jax.jit
  def route_and_fetch(tables, reads):
    routes = local.route(jax.tree.map(lambda x: x[None], reads))
    return routes, local.fetch(tables, routes)

  routes, fetched = route_and_fetch(tables, reads)

  def view(fetched) -> Any:
    rows, sums = fetched
    views = lookup.Views()
    for name, read in reads.items():
      if name in sums:
        views[name] = lookup.SumView(sums[name], read)
      else:
        place = routes.index[name][0]
        views[name] = lookup.RowView(rows[read.table], place, read)
    return views

  return fetched, view
