"""Configurations; the only readers of config files.

`retrieval()` and `ranking()` hold every key of an experiment with its default,
`hstu()`, `wukong()`, ... those of its model.
"""

from genrec_jax.config.comparison import (
  describe_differences,
  find_changed,
  keep_former_values,
  read_config,
  use_new_names,
)
from genrec_jax.config.drifting_stream import set_drifting_stream
from genrec_jax.config.errors import ConfigError
from genrec_jax.config.event_models import MECHANISMS
from genrec_jax.config.files import (
  describe_configs,
  load,
  load_saved,
  load_sweep,
  parse_variants,
)
from genrec_jax.config.loading import save, to_json
from genrec_jax.config.model_choice import choose_model, set_model
from genrec_jax.config.overrides import apply_override
from genrec_jax.config.planted_blocks import planted_blocks
from genrec_jax.config.rankers import (
  dcn,
  deepfm,
  dlrm,
  dnn,
  finalmlp,
  fm,
  lr,
  tbsm,
  wukong,
)
from genrec_jax.config.ranking import ranking, ranking_smoke
from genrec_jax.config.request_ranking import (
  pool_history,
  quicken_optimizer,
  quicken_stu,
  request_ranking,
  request_smoke,
  stu,
)
from genrec_jax.config.retrieval import hstu, retrieval, sasrec, smoke
from genrec_jax.config.sections import parallel
from genrec_jax.config.tables import TableSettings, table_settings

__all__ = [
  'ConfigError',
  'MECHANISMS',
  'TableSettings',
  'apply_override',
  'choose_model',
  'dcn',
  'deepfm',
  'describe_configs',
  'describe_differences',
  'dlrm',
  'dnn',
  'finalmlp',
  'find_changed',
  'fm',
  'hstu',
  'keep_former_values',
  'load',
  'load_saved',
  'load_sweep',
  'lr',
  'parallel',
  'planted_blocks',
  'ranking',
  'pool_history',
  'ranking_smoke',
  'read_config',
  'quicken_optimizer',
  'quicken_stu',
  'request_ranking',
  'request_smoke',
  'retrieval',
  'sasrec',
  'set_drifting_stream',
  'save',
  'set_model',
  'smoke',
  'stu',
  'tbsm',
  'table_settings',
  'to_json',
  'use_new_names',
  'parse_variants',
  'wukong',
]
