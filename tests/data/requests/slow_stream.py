"""The generated stream by plain loops, written from its description alone.

It shares nothing with genrec_jax.data.requests, its random numbers included, so
that only distributions can be compared.
"""

import math
import random

import numpy as np


class SlowStream:
  """Makes users one event at a time; item ratings are drawn when first met."""

  def __init__(self, options, seed):
    self.options = options
    self.random = random.Random(seed)
    self.item_rating = {}

  def make_user(self) -> dict[str, np.ndarray]:
    """Columns of all events of a user that is made anew."""
    o = self.options
    own = self.random.sample(range(o.categories), o.categories_per_user)
    counts = dict.fromkeys(own, 0)
    rows = []
    slot = 0
    for step in range(-1, o.train_steps):
      if step == -1 or self.random.random() < o.activity:
        size = self.draw_size()
        asked = 0 if step == -1 else o.train_candidates
        rows += self.make_slot(slot, step, own, counts, size, size, asked)
      slot += 1
    n = o.train_candidates
    rows += self.make_slot(slot, o.train_steps, own, counts, n, 0, n)
    slot += 1
    for step in range(o.train_steps, o.steps):
      if self.random.random() < o.activity:
        n, kept = o.inference_events, self.draw_size()
        asked = o.inference_candidates
        rows += self.make_slot(slot, step, own, counts, n, kept, asked)
      slot += 1
    names = (
      'slot', 'step', 'place', 'offset', 'item_rating', 'category_rating',
      'is_history', 'is_candidate',
    )  # fmt: skip
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True))))
    columns['rating'] = columns['category_rating'] + columns['item_rating']
    columns['rating'] = columns['rating'] / 2
    return columns

  def draw_size(self) -> int:
    o = self.options
    size = round(self.random.gauss(o.events, o.deviation))
    return max(o.train_candidates + 1, size)

  def make_slot(self, slot, step, own, counts, size, kept, asked) -> list:
    o, draw = self.options, self.random
    alpha = draw.randint(1, 500)
    total = sum(counts.values())
    chances = [(alpha / len(own) + counts[c]) / (alpha + total) for c in own]
    per_category = o.item_count // o.categories
    opened = int(per_category * max(step + 1, 1) / o.steps)
    history = set(draw.sample(range(size), min(kept, size)))
    candidates = set(draw.sample(range(size), asked))
    rows = []
    for i, category in enumerate(draw.choices(own, chances, k=size)):
      counts[category] += 1
      place = own.index(category)
      offset = draw.randrange(opened)
      item = category * per_category + offset
      if item not in self.item_rating:
        shares = [0.2, 0.25, 0.25, 0.2, 0.1]
        (self.item_rating[item],) = draw.choices([5, 4, 3, 2, 1], shares)
      rows.append(
        (
          slot, step, place, offset, self.item_rating[item],
          self.rate_category(place, len(own), step),
          i in history, i in candidates,
        )
      )  # fmt: skip
    return rows

  def rate_category(self, place, categories, step) -> float:
    values, shares = what_ratings(place, categories, step)
    return self.random.choices(values, shares)[0]


def what_ratings(place, categories, step):
  """What the category at a place of a user's order may be rated, how often."""
  # The last digits of a cosine would decide whether 3.5 is 3.5.
  c1, c2, c3 = (round(math.cos((step + k) * math.pi / 4), 9) for k in (0, 2, 4))
  if place < categories // 4:
    return [4.5 + 0.5 * c1, 4 + 0.5 * c2], [0.8, 0.2]
  if place < categories // 2:
    return [4.5 + 0.5 * c1, 4 + 0.5 * c2, 3.5 + 0.5 * c3], [0.1, 0.8, 0.1]
  if place < 3 * (categories // 4):
    return [3.5 + 0.5 * c1, 3 + 0.5 * c2, 2.5 + 0.5 * c3], [0.1, 0.8, 0.1]
  return [2.5 + 0.5 * c1, 2 + 0.5 * c2, 1.5 + 0.5 * c3], [0.1, 0.8, 0.1]
