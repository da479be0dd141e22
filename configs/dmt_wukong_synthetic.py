"""Wukong on towers (DMT), on generated clicks whose fields interact in blocks.

  genrec train dmt_wukong_synthetic --workdir=DIR/dmt
  genrec train dmt_wukong_synthetic:flat --workdir=DIR/flat

Sixteen fields interact in four blocks of four. 'auto:4' looks for the blocks in
the training data and gives each a tower; :flat is the model without towers. On
two hosts of four pretended devices each:

  genrec train dmt_wukong_synthetic:smoke --workdir=DIR/mesh --fake_devices=8 \\
    --config.parallel.hosts=2 --config.parallel.devices=4

A minute or two on two CPU cores. Figures and what they are of: docs/dmt.md.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  model = config_lib.wukong()
  return config_lib.planted_blocks(model, arg)
