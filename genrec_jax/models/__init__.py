"""Models: rows -> representations or logits. No IO, no loss, no tables."""

from genrec_jax.models import (
  dcn,
  deepfm,
  dlrm,
  dnn,
  finalmlp,
  fm,
  hstu,
  lr,
  sasrec,
  stu,
  tbsm,
  wukong,
)

MODELS = {'hstu': hstu.HSTU, 'sasrec': sasrec.SASRec}  # of sequences
RANKERS = {  # of examples
  'lr': lr.LR,
  'fm': fm.FM,
  'dnn': dnn.DNN,
  'deepfm': deepfm.DeepFM,
  'dlrm': dlrm.DLRM,
  'dcn': dcn.DCN,
  'finalmlp': finalmlp.FinalMLP,
  'tbsm': tbsm.TBSM,
  'wukong': wukong.Wukong,
}
REQUEST_MODELS = {'stu': stu.STU}  # of requests, beside pooled rankers
