"""RecBole's SASRec, for `benchmarks.first_metric --peer_python PATH`.

  PATH benchmarks/peer_recbole.py EVENTS.csv DIRECTORY

A program of its own: it needs RecBole and nothing of this project. It trains
one epoch on a CSV file with the columns user, item and time, validates on the
last item but one of each user among the whole catalogue, and keeps its files in
DIRECTORY. RecBole 1.2 runs with torch 2.13, numpy 1.26, pandas 2.2, scipy 1.11
and setuptools 80; as that torch reads only weights by default, the environment
must have TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1.
"""

import csv
import importlib.metadata
import os
import pathlib
import sys

NAMES = 'user_id:token', 'item_id:token', 'timestamp:float'


def main(source: str, directory: str) -> None:
  print('version', importlib.metadata.version('recbole'), flush=True)
  folder = pathlib.Path(directory) / 'events'
  folder.mkdir(parents=True)
  with open(source) as file, open(folder / 'events.inter', 'w') as out:
    rows = csv.reader(file)
    next(rows)
    out.write('\t'.join(NAMES) + '\n')
    out.writelines('\t'.join(row) + '\n' for row in rows)
  os.chdir(directory)
  from recbole.quick_start import run_recbole

  run_recbole(
    'SASRec',
    'events',
    config_dict={
      'data_path': directory,
      'load_col': {'inter': ['user_id', 'item_id', 'timestamp']},
      'train_neg_sample_args': None,
      'epochs': 1,
      'eval_args': {
        'split': {'LS': 'valid_and_test'},
        'order': 'TO',
        'mode': 'full',
        'group_by': None,
      },
      'use_gpu': False,
      'show_progress': False,
    },
  )


if __name__ == '__main__':
  main(*sys.argv[1:])
