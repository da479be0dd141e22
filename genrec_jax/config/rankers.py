"""The sections of the ranking models, whose fields models.py declares."""

from ml_collections import ConfigDict

from genrec_jax.config.errors import ConfigError
from genrec_jax.config.loading import hint_nearest
from genrec_jax.config.sections import make_model_section


def lr(**fields) -> ConfigDict:
  """Logistic regression: first-order weights alone."""
  return make_model_section('lr', fields)


def fm(**fields) -> ConfigDict:
  """Factorisation machine; see `models.FM`."""
  return make_model_section('fm', fields)


def dnn(**fields) -> ConfigDict:
  """Embeddings into one MLP; see `models.DNN`."""
  return make_model_section('dnn', fields)


def deepfm(**fields) -> ConfigDict:
  """FM and MLP side by side; see `models.DeepFM`."""
  return make_model_section('deepfm', fields)


def dlrm(**fields) -> ConfigDict:
  """DLRM; see `models.DLRM`."""
  return make_model_section('dlrm', fields)


def dcn(**fields) -> ConfigDict:
  """DCN-V2; see `models.DCN`."""
  return make_model_section('dcn', fields)


def finalmlp(**fields) -> ConfigDict:
  """FinalMLP; see `models.FinalMLP`."""
  return make_model_section('finalmlp', fields)


def tbsm(**fields) -> ConfigDict:
  """TBSM, and baselines over the same histories; see `models.TBSM`."""
  return make_model_section('tbsm', fields)


def wukong(**fields) -> ConfigDict:
  """Wukong; see `models.Wukong`."""
  return make_model_section('wukong', fields)


def shrink_ranker(model: ConfigDict) -> None:
  """Makes a ranking model small, in place, for features of any data."""
  for key, value in model.items():
    if isinstance(value, tuple) and value and isinstance(value[0], int):
      with model.ignore_type():
        model[key] = (16,)
  if model.name == 'finalmlp':
    model.heads = 1  # must divide the widths
    model.context1 = model.context2 = ()  # of other data
  if model.name == 'dlrm':
    model.dims = ConfigDict()
  if model.name == 'wukong':
    model.important = ConfigDict()
    model.small = ConfigDict()


# Sizes of the scaling study (Wukong, table 5): 720 features, two tasks. What it
# does not say, as the MLP that makes Y, stays as it is above. How near the
# published counts they come: benchmarks/published_sizes.py.
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
