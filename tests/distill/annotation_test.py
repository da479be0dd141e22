"""Join, store and manifest together: a small service, killed anywhere."""

import numpy as np
import pyarrow as pa

from genrec_jax.distill.label_join import LabelJoin
from genrec_jax.distill.part_manifest import Part, PartDirectory
from genrec_jax.distill.score_parts import Scores
from genrec_jax.distill.teacher_store import TeacherStore
from tests.distill import kills

STREAMS, UNITS = ('feed', 'video'), 3


def read_unit(k: int) -> dict:
  """Five examples a stream, of which two are in both; some labels come late."""
  out = {}
  for number, stream in enumerate(STREAMS):
    ids = 10 * k + np.arange(5) + 3 * number
    shown = pa.table({'example_id': ids, 'time': 60 * k + ids % 10})
    late = ids - 10 if k % 2 else ids
    late = late[late >= 0][::2]
    label = {'example_id': late, 'time': late // 10 * 60 + 20}
    out[stream] = shown, pa.table(label | {'click': np.ones(len(late))})
  return out


def annotate(path) -> None:
  """Reads units from where it was; writes a file a window and stream."""
  store = TeacherStore.open(
    path / 'store', teacher='big', labels=['click'], fingerprint='f'
  )
  out = PartDirectory(path / 'out', 'annotated windows', {'units': 0})
  out.recover()
  first = out.facts['units']
  join = LabelJoin(STREAMS, ['click'], window_s=60, attribution_s=30)
  former = f'state/{first}'
  if first:
    join = LabelJoin.from_bytes(out.read(former), former)
  for k in range(first, UNITS + 1):
    windows = join.add_unit(k, read_unit(k)) if k < UNITS else join.finish()
    parts = {f'state/{k + 1}': Part(join.to_bytes())}
    for window in windows:
      ids = window.table['example_id'].to_numpy()
      scores = Scores(
        ids, window.table['time'].to_numpy(), ids[:, None] / 100, k, k
      )
      # A teacher may have learned more since: what is in the store stays.
      if f'window-{window.number}' not in store.keys:
        store.append(f'window-{window.number}', scores)
      values = store.lookup(ids).values[:, 0]
      table = window.table.append_column('score', pa.array(values))
      for stream, rows in window.rows.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
          writer.write_table(table.take(pa.array(rows)).combine_chunks())
        content = sink.getvalue().to_pybytes()
        parts[f'{stream}/{window.number}'] = Part(content)
    out.commit(parts, {'units': k + 1}, [former] if k else [])
    former = f'state/{k + 1}'


def list_files(path) -> dict[str, bytes]:
  return {
    str(x.relative_to(path)): x.read_bytes()
    for x in path.rglob('*')
    if x.is_file() and not x.name.startswith('.')
  }


def test_a_service_that_is_killed_gives_each_example_once(tmp_path):
  (tmp_path / 'whole').mkdir()
  annotate(tmp_path / 'whole')
  expected = list_files(tmp_path / 'whole')
  assert {f'out/{s}/{k}' for s in STREAMS for k in range(UNITS)} < {*expected}
  for stream in STREAMS:
    ids = []
    for k in range(UNITS):
      content = expected[f'out/{stream}/{k}']
      ids += pa.ipc.open_stream(content).read_all()['example_id'].to_pylist()
    first = 0 if stream == 'feed' else 3
    assert ids == [10 * k + first + i for k in range(UNITS) for i in range(5)]
  moments = kills.walk(tmp_path, lambda path: path.mkdir(), annotate, every=5)
  for path in moments:
    before = list_files(path)
    annotate(path)
    assert list_files(path) == expected
    # What had its name once is what a follower has read.
    for name in before:
      if name.startswith(('out/feed/', 'out/video/')):
        assert before[name] == expected[name]
