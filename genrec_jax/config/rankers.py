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
      dtype='float32',  # 'bfloat16' arithmetic
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
      dtype='float32',  # 'bfloat16' arithmetic
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
      init='xavier_normal',  # 'dlrm'
      dtype='float32',  # 'bfloat16' arithmetic
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
      experts=0,  # low-rank experts of a layer; 0: one matrix, no gate
      share_gate=True,
      hidden=(400, 400, 400),
      stacked_hidden=(),  # of the stacked part, where there are both
      bottom=(),  # MLP over all numbers; (): each has a vector of its own
      batch_norm=True,
      dropout=0.0,
      dtype='float32',  # 'bfloat16' arithmetic
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
      dtype='float32',  # 'bfloat16' arithmetic
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
      fmb=8,  # n_F, rows of the factorisation block; or one for each layer
      lcb=8,  # n_L, rows of the linear compression block; likewise
      rank=8,  # k
      fm='optimised',  # 'full', 'triangular'
      attentive=True,
      compress=8,  # m, rows that the attention's MLP sees
      attention_hidden=(64,),
      fmb_hidden=(256, 256),
      bottom=(512, 256),
      number_vectors=1,  # that the bottom MLP gives
      top=(256,),
      dropout=0.0,  # of the blocks' MLPs
      top_dropout=0.0,
      embedding_dropout=0.0,
      norm_eps=1e-5,
      important={},  # feature -> how many vectors
      small={},  # feature -> width of its table; grouped, mapped to `dim`
      group_vectors=1,  # vectors that the group of the small ones gives
      group_hidden=(64,),
      last_relu=False,  # after a block's MLP
      residual_bias=False,
      top_batch_norm=False,
      zero=(),  # of 'fmb', 'lcb', 'residual': to see what they are worth
      dtype='float32',  # 'bfloat16' arithmetic
    ),
    fields,
  )
