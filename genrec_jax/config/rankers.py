"""Every key of the ranking models; see `genrec_jax.models`."""

from ml_collections import ConfigDict

from genrec_jax.config.sections import section


def lr(**fields) -> ConfigDict:
  """Logistic regression: first-order weights alone."""
  return section(dict(name='lr'), fields)


def fm(**fields) -> ConfigDict:
  """Factorisation machine; see `models.fm.Config`."""
  return section(dict(name='fm', dim=10), fields)


def dnn(**fields) -> ConfigDict:
  """Embeddings into one MLP; see `models.dnn.Config`."""
  return section(
    dict(
      name='dnn',
      dim=10,
      hidden=(400, 400, 400),
      batch_norm=True,
      dropout=0.0,
    ),
    fields,
  )


def deepfm(**fields) -> ConfigDict:
  """FM and MLP side by side; see `models.deepfm.Config`."""
  return section(
    dict(
      name='deepfm',
      dim=10,
      hidden=(400, 400, 400),
      batch_norm=True,
      dropout=0.0,
    ),
    fields,
  )


def dlrm(**fields) -> ConfigDict:
  """DLRM; see `models.dlrm.Config`."""
  return section(
    dict(
      name='dlrm',
      dim=10,
      interaction='dot',  # or 'cat'
      itself=False,
      bottom=(400, 400, 400),
      top=(400, 400, 400),
      batch_norm=True,
      dropout=0.0,
    ),
    fields,
  )


def dcn(**fields) -> ConfigDict:
  """DCN-V2; see `models.dcn.Config`."""
  return section(
    dict(
      name='dcn',
      dim=10,
      structure='parallel',  # 'cross', 'stacked', 'stacked_parallel'
      cross=3,
      rank=0,  # 0: full rank
      experts=1,
      hidden=(400, 400, 400),
      batch_norm=True,
      dropout=0.0,
    ),
    fields,
  )


def finalmlp(**fields) -> ConfigDict:
  """FinalMLP; see `models.finalmlp.Config`."""
  return section(
    dict(
      name='finalmlp',
      dim=10,
      hidden1=(400,),
      hidden2=(100,),
      batch_norm=True,
      dropout1=0.4,
      dropout2=0.4,
      selection=True,
      context1=('user',),
      context2=('item',),
      selection_hidden=(400,),
      heads=5,
    ),
    fields,
  )


def wukong(**fields) -> ConfigDict:
  """Wukong; see `models.wukong.Config`."""
  return section(
    dict(
      name='wukong',
      dim=16,
      layers=2,
      fmb=8,  # n_F, vectors of the factorisation machine block
      lcb=8,  # n_L, vectors of the linear compression block
      rank=8,  # k
      fm='optimised',  # 'full', 'triangular'
      attentive=True,
      compress=8,  # m, rows that the attention's MLP sees
      attention_hidden=(64,),
      fmb_hidden=(256, 256),
      bottom=(512, 256),
      top=(256,),
      dropout=0.0,
      important={},  # feature -> how many vectors
      small={},  # feature -> width of its table; grouped, mapped to `dim`
      group_vectors=1,  # vectors that the group of the small ones gives
      group_hidden=(64,),
    ),
    fields,
  )
