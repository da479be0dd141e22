"""What an experiment hands on, and what stands in for a config."""

import inspect

from genrec_jax import config as config_lib
from genrec_jax.tasks.retrieval import Retrieval
from genrec_jax.train.experiment import Experiment


def test_batches_go_on_until_somebody_asks_for_an_end():
  class Data:
    def train_batches(self, config, runtime, stop, log):
      return stop(), log

  experiment = Experiment(Data(), None, None, None)
  assert experiment.train_batches(None) == (False, print)
  assert experiment.train_batches(None, stop=lambda: True)[0]


def test_the_rows_of_a_task_made_by_hand_begin_as_those_of_a_config():
  made = inspect.signature(Retrieval).parameters
  assert made['init_std'].default == config_lib.retrieval().data.init_std
