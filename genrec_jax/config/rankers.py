"""The defaults of the ranking models.

The `Config` of each model, in `genrec_jax.models`, describes its fields;
docs/config_reference.md takes its descriptions from there.
"""

from ml_collections import ConfigDict

from genrec_jax.config.errors import ConfigError
from genrec_jax.config.loading import hint_nearest
from genrec_jax.config.sections import make_section


def lr(**fields) -> ConfigDict:
  """Logistic regression: first-order weights alone."""
  return make_section(dict(name='lr'), fields)


def fm(**fields) -> ConfigDict:
  """Factorisation machine; see `models.fm.Config`."""
  return make_section(dict(name='fm', dim=10), fields)


def dnn(**fields) -> ConfigDict:
  """Embeddings into one MLP; see `models.dnn.Config`."""
  return make_section(
    dict(
      name='dnn',
      dim=10,
      hidden=(400, 400, 400),
      batch_norm=True,
      dropout=0.0,
      dtype='float32',
    ),
    fields,
  )


def deepfm(**fields) -> ConfigDict:
  """FM and MLP side by side; see `models.deepfm.Config`."""
  return make_section(
    dict(
      name='deepfm',
      dim=10,
      hidden=(400, 400, 400),
      batch_norm=True,
      dropout=0.0,
      dtype='float32',
    ),
    fields,
  )


def dlrm(**fields) -> ConfigDict:
  """DLRM; see `models.dlrm.Config`."""
  return make_section(
    dict(
      name='dlrm',
      dim=10,
      interaction='dot',
      itself=False,
      bottom=(400, 400, 400),
      top=(400, 400, 400),
      batch_norm=True,
      dropout=0.0,
      init='xavier_normal',
      dtype='float32',
    ),
    fields,
  )


def dcn(**fields) -> ConfigDict:
  """DCN-V2; see `models.dcn.Config`."""
  return make_section(
    dict(
      name='dcn',
      dim=10,
      structure='parallel',
      cross=3,
      rank=0,
      experts=0,
      share_gate=True,
      hidden=(400, 400, 400),
      stacked_hidden=(),
      bottom=(),
      batch_norm=True,
      dropout=0.0,
      dtype='float32',
    ),
    fields,
  )


def finalmlp(**fields) -> ConfigDict:
  """FinalMLP; see `models.finalmlp.Config`."""
  return make_section(
    dict(
      name='finalmlp',
      dim=10,
      hidden1=(400,),
      hidden2=(100,),
      batch_norm=True,
      dropout1=0.4,
      dropout2=0.4,
      selection=True,
      context1=(),
      context2=(),
      selection_hidden=(400,),
      heads=5,
      dtype='float32',
    ),
    fields,
  )


def wukong(**fields) -> ConfigDict:
  """Wukong; see `models.wukong.Config`."""
  return make_section(
    dict(
      name='wukong',
      dim=16,
      layers=2,
      fmb=8,
      lcb=8,
      rank=8,
      fm='optimised',
      attentive=True,
      compress=8,
      attention_hidden=(64,),
      fmb_hidden=(256, 256),
      bottom=(512, 256),
      number_vectors=1,
      top=(256,),
      dropout=0.0,
      top_dropout=0.0,
      embedding_dropout=0.0,
      norm_eps=1e-5,
      important={},
      small={},
      group_vectors=1,
      group_hidden=(64,),
      last_relu=False,
      residual_bias=False,
      fmb_batch_norm=False,
      top_batch_norm=False,
      zero=(),
      dtype='float32',
    ),
    fields,
  )


# Sizes of the scaling study (Wukong, table 5): 720 features, two tasks. What it
# does not say, as the MLP that makes Y, stays as it is above.
_WUKONG = {  # name -> layers, n_F = n_L, k, width of three layers
  'wukong_l2_n8': (2, 8, 24, 2048),
  'wukong_l4_n32': (4, 32, 24, 2048),
  'wukong_l8_n32': (8, 32, 24, 2048),
  'wukong_l8_n48': (8, 48, 48, 4096),
  'wukong_l8_n96': (8, 96, 96, 8192),
  'wukong_l8_n96_wide': (8, 96, 96, 16_384),
  'wukong_l8_n192': (8, 192, 192, 16_384),
}
_DLRM = (512, 2048, 4096, 8192, 16_384, 32_768)  # four layers of the top MLP
_DCN = (2048, 4096, 16_384, 32_768)  # four layers, beside two of rank 512
SCALING = (
  *_WUKONG,
  'dlrm_2x512',
  *(f'dlrm_4x{width}' for width in _DLRM),
  *(f'dcn_4x{width}' for width in _DCN),
)


def scaled_wukong(name: str, **fields) -> ConfigDict:
  """A model of Wukong's scaling study, `SCALING`; 160 wide vectors."""
  if name not in SCALING:
    raise ConfigError(
      f'no scaling preset {name!r}{hint_nearest(name, SCALING)}'
    )
  if name in _WUKONG:
    layers, n, k, width = _WUKONG[name]
    return wukong(
      **dict(
        dim=160,
        layers=layers,
        fmb=n,
        lcb=n,
        rank=k,
        fmb_hidden=(width,) * 3,
      )
      | fields
    )
  model, _, size = name.partition('_')
  depth, _, width = size.partition('x')
  deep = (int(width),) * int(depth)
  if model == 'dlrm':
    own = dict(dim=160, bottom=(512, 256), top=deep, batch_norm=False)
    return dlrm(**own | fields)
  own = dict(cross=2, rank=512, bottom=(512, 256), hidden=deep)
  return dcn(**dict(dim=160, batch_norm=False) | own | fields)
