"""Files of events: what a unit may hold, and what is said of others."""

import pathlib

import pytest

from genrec_jax.data.parquet import pa, pq
from genrec_jax.distill.label_join import LabelJoin
from genrec_jax.serve.event_files import EventFiles
from genrec_jax.serve.join_watch import JoinWatch


def write(
  folder: pathlib.Path, unit: int, times=(10, 20), labels=(1,), stream='feed'
) -> None:
  """A unit whose labels are of its first examples."""
  own = folder / stream
  own.mkdir(parents=True, exist_ok=True)
  ids = [1000 * unit + i for i in range(len(times))]
  shown = pa.table({'example_id': ids, 'time': list(times)})
  came = pa.table(
    {
      'example_id': ids[: len(labels)],
      'time': list(times)[: len(labels)],
      'click': pa.array(labels, pa.float64()),
    }
  )
  pq.write_table(shown, own / f'impressions-{unit:06d}.parquet')
  pq.write_table(came, own / f'labels-{unit:06d}.parquet')


def make(folder: pathlib.Path, streams=('feed',)) -> EventFiles:
  return EventFiles(str(folder), streams, ['click'], 60)


def test_a_unit_is_read_once_all_of_it_is_there(tmp_path):
  files = make(tmp_path, ('feed', 'video'))
  write(tmp_path, 0)
  assert files.read_unit(0) is None
  write(tmp_path, 0, stream='video')
  shown, came = files.read_unit(0)['video']
  assert shown['time'].to_pylist() == [10, 20]
  assert came['click'].to_pylist() == [1]
  assert files.count_from(0) == 1


@pytest.mark.parametrize(
  'times, labels, message',
  [
    ([10, -1], [1], 'example 1 has the time -1, and times are whole seconds'),
    ([10, 1_764_000_000_000], [1], 'are these milliseconds'),
    ([10, 20, 10**6], [1], 'example 2 has the time 1000000, more than 1,000 w'),
    ([10, 20], [1, 5], "'click' of the example 1 is 5, and a label is 0 or 1"),
    ([10, 20], [-1], "'click' of the example 0 is -1"),
    ([10, 20], [0.5], "'click' of the example 0 is 0.5"),
  ],
)
def test_what_cannot_be_is_refused_with_file_and_id(
  tmp_path, times, labels, message
):
  write(tmp_path, 0, times, labels)
  with pytest.raises(ValueError, match=message) as error:
    make(tmp_path).read_unit(0)
  assert 'feed' in str(error.value) and '-000000.parquet' in str(error.value)


def test_a_pause_of_all_is_no_time_far_ahead(tmp_path):
  write(tmp_path, 0, [10**8, 10**8 + 5])
  assert make(tmp_path).read_unit(0)


def test_what_is_waited_for_is_described(tmp_path):
  files = make(tmp_path)
  assert 'feed is not there' in files.describe_wait(0)
  (tmp_path / 'app').mkdir()
  assert 'has app' in files.describe_wait(0)
  write(tmp_path, 0)
  text = files.describe_wait(1)
  assert text.endswith('impressions-000001.parquet is not there')
  (tmp_path / 'feed' / 'impressions-1.parquet').touch()
  assert 'feed has impressions-1.parquet' in files.describe_wait(1)
  write(tmp_path, 2)
  assert 'impressions-000002.parquet' in files.describe_wait(1)
  (tmp_path / 'END').touch()
  with pytest.raises(ValueError, match='but unit 1 is not whole: .*000001'):
    files.refuse_gap(1)


def test_a_directory_called_end_ends_nothing(tmp_path):
  (tmp_path / 'END').mkdir()
  assert not make(tmp_path).has_ended()


def feed(join, watch, unit, shown, came):
  tables = {
    stream: (
      pa.table({'example_id': ids, 'time': [10 * unit] * len(ids)}),
      pa.table(
        {
          'example_id': came.get(stream, []),
          'time': [came.get('time', 10 * unit)] * len(came.get(stream, [])),
          'click': [1] * len(came.get(stream, [])),
        }
      ),
    )
    for stream, ids in shown.items()
  }
  join.add_unit(unit, tables)
  watch.look(join, unit, tables)


def test_lost_labels_end_a_service(caplog):
  join, ids = LabelJoin(['feed'], ['click'], 60, 30), list(range(400))
  watch = JoinWatch('events', 0.5)
  feed(join, watch, 0, {'feed': ids}, {'feed': ids[:180]})
  assert not caplog.records
  feed(join, watch, 1, {'feed': []}, {'feed': list(range(900, 920))})
  assert '10.00% of labels are lost (20 of unknown examples)' in caplog.text
  with pytest.raises(ValueError, match='--most_lost=1 goes on'):
    feed(join, watch, 2, {'feed': []}, {'feed': list(range(1000, 1300))})


def test_labels_before_their_impressions_are_warned_of(caplog):
  join, ids = LabelJoin(['feed'], ['click'], 60, 30), list(range(200))
  feed(join, JoinWatch('e', 0.5), 9, {'feed': ids}, {'feed': ids, 'time': 3})
  assert '100% of labels are from before their impression' in caplog.text
  assert join.counts.early == join.counts.joined == 200


def test_a_silent_stream_is_warned_of_once(caplog):
  join = LabelJoin(['feed', 'video'], ['click'], 60, 30)
  watch = JoinWatch('events', 0.5)
  for unit in range(6):
    ids = [10 * unit, 10 * unit + 1]
    shown = {'feed': ids, 'video': [] if unit else [7]}
    feed(join, watch, unit, shown, {})
  (record,) = caplog.records
  assert 'stream video has had no impressions since unit 1' in record.message
