"""Lookups of packed ids in a table of rows, and updates of the rows read.

A batch holds packed ids `[K]`, bag after bag, and `lengths` `[B]`; the ids
after the last bag are padding and are never read.

    @functools.partial(jax.jit, donate_argnames=('table', 'slots'))
    def step(table, slots, ids, lengths):
      bags = embedding_bag(table, ids, lengths)
      loss, grad = jax.value_and_grad(loss_fn)(bags)
      return loss, *embedding_bag_backward_and_update(
        table, slots, ids, lengths, grad, learning_rate=0.1)

This is the fast way: no gradient of the table's size exists, rows that no id
names are not touched, and donated arguments are changed in place. XLA copies
the table if it is not donated, and also if the gradient does not depend on the
lookup, because then nothing orders the two; the result is the same. The steps
are also available on their own: `bag_row_gradient` and `merge_rows` give one
gradient row for each distinct id, and `update_rows` moves those rows. An id
that occurs often moves its row once, by its summed gradient, so AdaGrad and
Adam are exact.

`jax.grad` with respect to the table works too and gives a dense `[rows, D]`
gradient, which is right for a small table. It cannot be differentiated again.

An id outside 0 .. rows - 1 raises an error where ids are known. Under jit,
where they are not, such an id reads NaN, so that the loss shows it, and is
skipped on the way back, since it has no row to move. Lengths that are negative
or add up to more than the number of ids raise an error, or make NaN of all bags
and of the rows that are moved.

Sums are float32 whatever the table's dtype. Slots, which are what an optimizer
remembers of each row (`init_slots`), are float32 too; a count is int32.
"""
