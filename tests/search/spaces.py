"""Small spaces for tests, and what enumerating them says."""

import itertools

import numpy as np

from genrec_jax.config.models import DLRM
from genrec_jax.features import FeatureSpec
from genrec_jax.search.choices import SKIP
from genrec_jax.search.dlrm_space import DlrmSpace
from genrec_jax.search.mlp_space import MlpSpace

FEATURES = (
  FeatureSpec('user', rows=50),
  FeatureSpec('item', rows=40),
  FeatureSpec('seen', 'multi_hot', rows=40, table='item'),
  FeatureSpec('price', 'numeric'),
  FeatureSpec('age', 'numeric'),
)


def make_space(
  interaction='cat', batch_norm=False, features=FEATURES, **fields
):
  """Both MLPs, widths and rows are to be chosen."""
  config = DLRM(
    dim=4, bottom=(4,), top=(4,), interaction=interaction, batch_norm=batch_norm
  )
  has_numbers = any(f.kind == 'numeric' for f in features)
  given = {
    'bottom': MlpSpace('bottom', ((3, 5), (3, 5)), 4) if has_numbers else None,
    'top': MlpSpace('top', ((3, 5), (3, 5), (3, 5)), 2),
    'dims': {'user': (2, 4), 'item': (1, 2, 4)},
    'rows': {'user': (50, 6), 'item': (40,)},
    'row_bytes': {'user': 4, 'item': 4},
  }
  return DlrmSpace(features=features, config=config, **(given | fields))


def draw_weights(choices, seed=0):
  """Weights of choices by chance, float64."""
  rng = np.random.default_rng(seed)
  found = {}
  for choice in choices:
    weight = np.exp(rng.normal(size=len(choice.options)))
    found[choice.name] = weight / weight.sum()
  return found


def list_mlps(space, weights):
  """(probability, hidden widths) of every draw of all of its choices.

  Every choice is drawn, whether or not a layer asks for it, and read from the
  output down: the slow way, which knows nothing of paths.
  """
  choices = space.choices
  for options in itertools.product(*(c.options for c in choices)):
    drawn = dict(zip((c.name for c in choices), options, strict=True))
    p = 1.0
    for choice in choices:
      if len(choice.options) > 1:
        place = choice.options.index(drawn[choice.name])
        p *= weights[choice.name][place]
    size, hidden = drawn[space.last.name], []
    for layer in range(space.layers, 1, -1):
      below = drawn[f'{space.name}.{layer}.{size}']
      if below != SKIP:
        hidden.insert(0, size)
        size = below
    yield p, (size, *hidden)
