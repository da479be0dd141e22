"""`--mode=predict` of a ranking run: examples in, probabilities out.

Nothing here holds more than a batch, so a file of any length is scored in
constant memory.
"""

import logging
import os
import pathlib
from collections.abc import Callable

from genrec_jax import interruption
from genrec_jax.contracts import EvalRuntime, Extensions, Task
from genrec_jax.data.quoting import list_names
from genrec_jax.data.ranking import (
  batches,
  datasets,
  formats,
  saved_encoder,
  value_shares,
  value_tally,
)
from genrec_jax.parallel import job
from genrec_jax.serve import (
  kept_columns,
  prediction_files,
  prediction_paths,
)
from genrec_jax.serve.scorer import Scorer

LOG = logging.getLogger('genrec_jax')


def write_scores(
  config,
  workdir: str | os.PathLike,
  extensions: Extensions | None = None,
  make_runtime: Callable[[Task], EvalRuntime] | None = None,
) -> dict:
  """Scores `config.predict.input`, or the test split where it is ''.

  Args:
    config: the config of the run, its `predict` section filled in.
    workdir: of a trained run; nothing in it changes but `predictions.csv`.
    extensions: what is used from outside the library.
    make_runtime: of a task; where its weights shall lie. None is one device.

  Returns:
    {'output', 'rows', 'values'}: the path, how many examples there are, and
    feature -> how many values there are, missing and unseen.
  """
  workdir, predict = pathlib.Path(workdir), config.predict
  source, output = prediction_paths.settle_paths(config, workdir)
  scorer = Scorer.load(
    workdir, config, predict.checkpoint, extensions, make_runtime
  )
  tally = value_tally.Tally(scorer.encoder)
  reserved = {'row', *prediction_files.name_scores(scorer.labels)}
  kept = kept_columns.KeptColumns(predict.keep, config.data, reserved)
  if source:
    chunks = formats.read_examples(
      scorer.encoder, source, predict.format, kept.choose
    )
    chunks = kept.watch(chunks)
    score_batches, total = scorer.score_chunks(chunks, tally), None
  else:
    dataset = _load_data(config, workdir)
    split, raw_rows = dataset.splits['test'], dataset.raw_rows
    total = len(split)
    kept.choose(*raw_rows.list_columns('test'))
    chunks = kept.watch(raw_rows.read_split('test', kept.names, LOG.info))
    score_batches = scorer.score_batches(
      batches.eval_batches(split, weighted=False, **scorer.batching)
    )
  done = 0
  with prediction_paths.open_output(output, predict, total, 'example') as (
    file,
    progress,
  ):
    for scores in interruption.each(score_batches):
      if not source:
        kept.hold(chunks, len(scores))
      columns = kept.take(len(scores))
      file.write(
        prediction_files.Scores(done + 1, scorer.labels, scores, columns)
      )
      done += len(scores)
      progress.update(done)
  LOG.info('%s: probabilities of %s examples', output, f'{done:,}')
  if not source:
    LOG.info('%s', _explain_rows(output, raw_rows, kept.names))
  if source:
    values = tally.counts()
    _tell_values(scorer.encoder, str(source), values)
  else:
    values = scorer.encoder.value_counts.get('test', {})
  values = {name: counts.to_json() for name, counts in values.items()}
  return {'output': str(output), 'rows': done, 'values': values}


def _tell_values(encoder, name: str, values) -> None:
  """Logs the shares of unseen and missing values; warns of too many."""
  if line := value_shares.describe_part(name, values):
    LOG.info('%s', line)
  expected = value_shares.expect_shares(encoder, encoder.value_counts)
  for excess in value_shares.find_excesses(encoder, name, values, expected):
    if excess.text:
      LOG.warning('%s', excess.text)


def _explain_rows(output, raw_rows, names: list[str]) -> str:
  """What the rows of a file of scores are, for whoever joins them."""
  text = f'{output}: `row` counts {raw_rows.describe_order("test")}, from 1'
  if names:
    return f'{text}; with their columns {list_names(names)}'
  return f'{text}; --config.predict.keep=NAME,... adds columns of theirs'


def _load_data(config, workdir: pathlib.Path) -> datasets.RankingDataset:
  """The data that a run was trained on, which have a test split."""
  cache = config.data.cache or workdir / 'data'
  cfg = saved_encoder.keep_features(config.data, workdir, LOG.info)
  with job.fail_together('reading the data', lead_first=True):
    dataset = datasets.load(cfg, cache, log=LOG.info)
  LOG.info(dataset.summary())
  dataset.tell_values(LOG.info)
  if dataset.fingerprint() != saved_encoder.read_fingerprint(workdir):
    raise ValueError(
      f'{workdir} was trained on other data than data.path '
      f'({config.data.path!r}) holds now; give examples as '
      '--config.predict.input'
    )
  if 'test' not in dataset.splits:
    raise ValueError(
      'these data have no test split; give examples as --config.predict.input'
    )
  return dataset
