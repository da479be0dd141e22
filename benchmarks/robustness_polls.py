"""Memory and descriptors of a stream that is asked ten thousand times."""

import gc
import os
import pathlib
import time

import numpy as np

from genrec_jax.data import stream, vocab

ITEMS = 50


def measure_polls(
  directory: pathlib.Path, polls: int, *, every: int = 10, looks: int = 10
) -> list[dict]:
  """Rows of a stream that looks for parts, while some appear.

  Args:
    directory: an empty one.
    polls: looks into the directory.
    every: polls between two parts.
    looks: rows, one behind so many-th of the polls.

  Returns:
    Rows with 'case', 'polls', 'parts', 'rss_mb', 'descriptors' and
    'state_bytes', the JSON of what a checkpoint would keep.
  """
  count, rows = 0, []

  def stop():
    nonlocal count
    count += 1
    if count % every == 0:
      _put_part(directory, count // every)
    return count % (polls // looks) == 0

  batches = iter(
    stream.stream_batches(
      directory,
      columns={'user': 'user', 'item': 'item', 'time': 'time'},
      item_vocab=vocab.Vocab(np.arange(1, ITEMS + 1)),
      batch_size=8,
      max_len=20,
      poll_s=0.0,
      stop=stop,
      log=lambda line: None,
    )
  )
  begun = time.process_time()
  while count < polls:
    for _ in batches:  # ends whenever `stop` says so, and goes on
      pass
    gc.collect()
    rows.append(
      {
        'case': f'polls {count}',
        'polls': count,
        'parts': count // every,
        'rss_mb': _resident_bytes() / 1e6,
        'descriptors': len(os.listdir('/proc/self/fd')),
        'state_bytes': len(str(batches.get_state())),
        'core_s': time.process_time() - begun,
      }
    )
  batches.close()
  return rows


def _put_part(directory: pathlib.Path, number: int) -> None:
  rng = np.random.default_rng(number)
  users, items = rng.integers(0, 9, 40), rng.integers(1, ITEMS + 1, 40)
  lines = [f'{u},{i},{t}\n' for t, (u, i) in enumerate(zip(users, items))]
  hidden = directory / 'unfinished'
  hidden.write_text('user,item,time\n' + ''.join(lines))
  hidden.rename(directory / f'part-{number:08}.csv')


def _resident_bytes() -> int:
  pages = pathlib.Path('/proc/self/statm').read_text().split()[1]
  return int(pages) * os.sysconf('SC_PAGE_SIZE')
