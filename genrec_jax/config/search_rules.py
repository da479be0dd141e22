"""What the keys of the section `search` may be, for key_rules.py."""

from genrec_jax.config.value_rules import Rule, number, some, whole, words

COSTS = ('flops', 'parameters', 'bytes', 'latency_us')
_WIDTH = whole(1, 2**20)
_SWITCH = Rule('True or False')

RULES = {
  'search.supernet': _SWITCH,
  'search.spaces': some(
    words('mlp', 'emb_dim', 'emb_rows', 'wukong', grows=True), filled=True
  ),
  'search.top': some(_WIDTH, filled=True),
  'search.top_layers': whole(1, 64),
  'search.bottom': some(_WIDTH, filled=True),
  'search.bottom_layers': whole(1, 64),
  'search.skips': _SWITCH,
  'search.dims': some(_WIDTH, filled=True),
  'search.row_shares': some(number(above=0, most=1), filled=True),
  'search.wukong_layers': some(whole(1, 64), filled=True),
  'search.wukong_fmb': some(_WIDTH, filled=True),
  'search.wukong_lcb': some(_WIDTH, filled=True),
  'search.wukong_rank': some(_WIDTH, filled=True),
  'search.wukong_hidden': some(_WIDTH, filled=True),
  'search.tables': Rule('a regular expression'),
  'search.cost': words(*COSTS),
  'search.cost_loss': words('linear', 'exponential', 'budget', 'none'),
  'search.cost_weight': number(least=0),
  'search.cost_power': number(),
  'search.max_flops': number(least=0),
  'search.max_parameters': number(least=0),
  'search.max_bytes': number(least=0),
  'search.max_latency_us': number(least=0),
  'search.latency_table': Rule('text'),
  'search.budget_rate': number(above=0),
  'search.budget_epochs': number(least=0),
  'search.epochs': whole(),
  'search.batch_size': whole(),
  'search.share': number(above=0, below=1),
  'search.warmup_epochs': whole(),
  'search.table_l2_factor': number(least=0),
  'search.optimizer': words('sgd', 'adam', 'adagrad'),
  'search.learning_rate': number(above=0),
  'search.temperature': number(least=1e-3),
  'search.temperature_decay': number(least=0),
  'search.hard': _SWITCH,
  'search.draws': words('example', 'batch'),
  'search.samples': whole(1, 10_000),
  'search.proposals': whole(0, 100_000),
  'search.rates': some(number(above=0)),
  'search.compare': _SWITCH,
  'search.seed': whole(0, 2**63 - 1),
  'search.shared_optimizer': _SWITCH,
  'search.drop_skips': _SWITCH,
}
