"""A learned map whose rows are drawn."""

import numpy as np

from genrec_jax.embedding.learned_map import LearnedIdMap, pack_rows


class Drawn(LearnedIdMap):
  """One whose rows are drawn and not read."""

  def load(self):
    rng = np.random.default_rng(7)
    rows = rng.integers(1, self.rows, self.ids)
    return {'words': pack_rows(np.append(0, rows[1:]), self.rows)}
