"""Models: rows -> representations. No IO, no loss, no tables."""

from genrec_jax.models import hstu, sasrec

MODELS = {'hstu': hstu.HSTU, 'sasrec': sasrec.SASRec}
