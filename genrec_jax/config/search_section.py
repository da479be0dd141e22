"""The section `search`: which widths, depths and tables a search chooses from.

As in sections.py, comments are the descriptions in docs/config_reference.md.
"""

from ml_collections import ConfigDict

from genrec_jax.config.sections import make_section


def search(**fields) -> ConfigDict:
  """What is searched, and how; see docs/dnas.md."""
  return make_section(
    dict(
      # Trains the supernet alone, in place of the model; `genrec search` sets
      # it for the first of its runs.
      supernet=False,
      # What is searched: 'mlp', the width of each layer and which layers there
      # are; 'emb_dim', the width of each table; 'emb_rows', its rows; 'wukong',
      # the layers of a Wukong; and those of `extensions` by their names.
      spaces=('mlp', 'emb_dim'),
      # The widths of a layer of the MLP over interactions.
      top=(16, 32, 64),
      top_layers=3,  # The most hidden layers of it.
      bottom=(16, 32, 64),  # The widths of a layer of the MLP over numbers.
      bottom_layers=2,  # The most hidden layers of it.
      # Whether layers but the first of an MLP may be left out.
      skips=True,
      dims=(4, 8, 16),  # The widths of a table.
      # The rows of a table, as shares of its ids.
      row_shares=(1.0, 0.1, 0.01),
      wukong_layers=(1, 2, 3),  # Numbers of layers of a Wukong.
      wukong_fmb=(4, 8),  # Rows of its factorisation machine blocks.
      wukong_lcb=(4, 8),  # Rows of its linear compression blocks.
      wukong_rank=(4, 8),  # Its ranks k.
      wukong_hidden=(64, 256),  # Widths of the hidden layers of its blocks.
      tables='.*',  # The tables whose width and rows are searched, a regex.
      # The cost that the loss counts: 'flops', of the forward pass of an
      # example, 'parameters', 'bytes', or 'latency_us', by a table.
      cost='flops',
      # How it is counted: 'linear', CE + weight * mean(log cost) / 100;
      # 'exponential', CE * weight * mean((log cost) ** power); 'budget', by a
      # multiplier for each budget that rises while it is exceeded; 'none'.
      cost_loss='linear',
      cost_weight=7e-4,  # Factor of the cost.
      cost_power=1.0,  # Exponent of 'exponential'.
      # The most operations of the forward pass of an example that a model may
      # take, 0 for any number.
      max_flops=0.0,
      max_parameters=0.0,  # The most parameters, those of tables included.
      max_bytes=0.0,  # The most bytes of all parameters.
      # The most microseconds that the matrices take for an example.
      max_latency_us=0.0,
      # The file of a table of latencies, which `python -m
      # genrec_jax.search.latency` makes; '' is none.
      latency_table='',
      # How fast multipliers of budgets rise: their change in a step is this
      # times the share by which a budget is exceeded.
      budget_rate=0.1,
      # Epochs of choosing in which budgets fall from the cost of the mean model
      # to what is asked.
      budget_epochs=3.0,
      # Epochs of the supernet, passes over both parts of the examples; 0 has as
      # many as `train.epochs`.
      epochs=0,
      batch_size=0,  # Of the supernet; 0 is `train.batch_size`.
      # The share of the training examples from which choices learn, and weights
      # do not.
      share=0.2,
      warmup_epochs=1,  # Epochs in which weights learn alone.
      # Factor of `loss.table_l2` in the supernet, where it acts on all columns
      # of a table, and those that are rarely chosen learn little against it.
      table_l2_factor=0.1,
      optimizer='adam',  # Of the choices: 'sgd', 'adam' or 'adagrad'.
      learning_rate=0.02,  # Of the choices.
      temperature=1.0,  # Of the first draws: tau_0.
      # How fast it falls: eta of tau_0 exp(-eta t) after t epochs of choosing.
      temperature_decay=0.1,
      # Whether an example takes one option of each choice, or a mixture.
      hard=False,
      draws='example',  # Whether each 'example' draws, or the 'batch' at once.
      # Models that are drawn from the choices and trained from scratch.
      samples=4,
      # Architectures that are drawn and tried in the supernet, of which the
      # best are trained from scratch; 0 tries none but those.
      proposals=0,
      # Whether the model of the config is trained, too, beside what is found.
      compare=False,
      # Rates with which each of them is trained; () is that of the config.
      rates=(),
      seed=0,  # Seed of these draws.
      # Whether the optimizer of the weights moves the choices too, in its own
      # steps, as in the published code.
      shared_optimizer=False,
      # Whether the cost leaves out what flows through layers that are left out,
      # as in the published code.
      drop_skips=False,
    ),
    fields,
  )
