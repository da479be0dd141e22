"""gSASRec on MovieLens-1M: SASRec with 256 negatives and the gBCE loss.

  genrec train gsasrec_ml1m \\
    --config.data.path=DIR/sasrec.txt --workdir=DIR/gsasrec_ml1m

Needs: the SASRec version of ML-1M, a text file of "user item" lines. Leave last
out with a validation item, all-item ranking without the items of the history,
early stopping on validation NDCG@10. Published (256 wide, three layers, up to
200 rounds of patience): HR@10 .3003, NDCG@10 .1726. The default here is the
published width; `:narrow` is 128 wide with two layers, for two CPU cores. Ours:
see docs/results.md.

As in the published code: rows and positions start with deviation 1, matrices as
PyTorch's layers do; positions count from the newest token; no projection behind
the attention and no activation in the feed-forward net. Difference: the normal
distributions are cut at two deviations.
"""

from genrec_jax import config as config_lib


def get_config(arg=None):
  variants = config_lib.parse_variants(arg, ('smoke', 'narrow'))
  narrow = 'narrow' in variants
  width = 128 if narrow else 256
  config = config_lib.retrieval()
  config.data.name = 'sasrec_text'
  config.data.path = 'data/ml-1m/sasrec.txt'
  config.data.token_capacities = 0  # the shapes of the published runs
  config.data.init_std = 1.0
  config.split.holdout = 2
  config.model = config_lib.sasrec(
    dim=width,
    ffn_dim=width,
    blocks=2 if narrow else 3,
    heads=1,
    extra_positions=0,
    dropout=0.2 if narrow else 0.1,
    embedding_dropout=0.2 if narrow else 0.1,
    norm_eps=1e-5,
    norm_affine=True,
    final_norm=True,
    scale_rows=False,
    positions_from='newest',
    position_std=1.0,
    project=False,
    activation='none',
    init='fan_in_uniform',
  )
  config.loss.name = 'gbce'
  config.loss.negatives = 256
  config.loss.gbce_t = 0.75
  config.loss.temperature = 1.0
  config.loss.l2_normalize = False
  config.loss.mask_collisions = False
  config.optimizer.name = 'adam'
  config.optimizer.b2 = 0.999
  config.eval.filter_seen = 'history'
  config.train.epochs = 400
  config.train.eval_every = 4 * 48
  config.train.checkpoint_every = 96
  config.train.patience = 10
  return config_lib.smoke(config) if 'smoke' in variants else config
