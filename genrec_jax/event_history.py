"""What a ranking model is given of a history: events one by one, packed."""

import dataclasses

import jax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class History:
  """The events of B examples, those of one behind those of the other.

  The events of an example are in the order of its lists, the latest last. What
  stands behind the last event of all is padding: finite, and without meaning.
  `pallas_kernels.segment_ids(lengths, K)` tells whose an event is.

  Attributes:
    vectors: `[K, dim]` of each feature with a table, by its name. An event
      whose value is missing has row 0 of the table.
    numbers: `[K, N]` float32 of the features of numbers, in their order; 0
      where one is missing.
    lengths: `[B]` int32 events of each example.
    first: `[1]` int32 number of the first event in the whole batch, for
      dropout; or None.
  """

  vectors: dict[str, jax.Array]
  numbers: jax.Array
  lengths: jax.Array
  first: jax.Array | None = None
