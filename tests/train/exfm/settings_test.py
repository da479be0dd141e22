"""What the driver of ExFM is asked for, and what it asks its processes for."""

import dataclasses
import json
import pathlib
import re

import pytest

from genrec_jax.config.errors import ConfigError
from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking.drift import DriftLog
from genrec_jax.distill import heads
from genrec_jax.serve import annotate
from genrec_jax.train.exfm import __main__ as command
from genrec_jax.train.exfm import base_data, commands, settings


def read(*words, root='/tmp/system') -> settings.Settings:
  return command.read_settings(command.make_parser().parse_args([root, *words]))


def refuse(message, *words):
  with pytest.raises((ConfigError, ValueError), match=message):
    commands.load_configs(commands.Layout(pathlib.Path('/x'), read(*words)))


def test_the_methods_are_those_of_the_heads():
  assert {*settings.METHODS} == {*heads.METHODS}


def test_what_nobody_says_is_three_students_and_their_twins():
  asked = read()
  assert [(s.name, s.model, s.segments) for s in asked.students] == [
    ('feed', 'dlrm', (0,)),
    ('video', 'dcn', (1,)),
    ('search', 'deepfm', (2,)),
  ]
  assert asked.methods == ('adapter', 'none')
  assert asked.window_s == 3600 and asked.attribution_s == 7200
  assert asked.stream.rows == 50_000


def test_a_method_is_not_compared_with_itself():
  words = ('--method', 'head', '--compare', 'none', 'head', 'one_head')
  assert read(*words).methods == ('head', 'none', 'one_head')
  assert read('--compare').methods == ('adapter',)


def test_segments_are_dealt_out_and_grow_with_the_students():
  students = ['a=dlrm', 'b=dlrm', 'c=dcn', 'd=dcn', 'e=deepfm']
  asked = read('--students', *students)
  assert asked.stream.segments == 5
  assert [s.segments for s in asked.students] == [(k,) for k in range(5)]
  shared = read('--students', 'a=dlrm:0,1', 'b=dcn:1', 'c=dcn', '--segments=4')
  assert [s.segments for s in shared.students] == [(0, 1), (1,), (2, 3)]


@pytest.mark.parametrize(
  'message, words',
  [
    ("no segment is left for the student 'search': there are 2",
     ['--segments=2']),
    ('segment 7; segments are 0 to 2', ['--students', 'a=dlrm:7']),
    ("not 'feed'", ['--students', 'feed']),
    ('NAME=MODEL:SEGMENT', ['--students', 'feed=dlrm:x']),
    ('a segment twice', ['--students', 'feed=dlrm:1,1']),
    ("has 'feed' twice", ['--students', 'feed=dlrm:0', 'feed=dcn:1']),
    ("cannot be called 'teacher'", ['--students', 'teacher=dlrm']),
    ('is that of a directory', ['--students', 'a/b=dlrm']),
    ('--lag is -1', ['--lag=-1']),
    ('go together', ['--events=x', '--window_s=60']),
    ('--window_s is missing', ['--events=x', '--base=y']),
    ('--rows is of the generated stream',
     ['--events=x', '--base=y', '--window_s=60', '--rows=3']),
    ('--set takes teacher.KEY=VALUE', ['--set', 'model.dim']),
    ("'feeds' is none of", ['--set', 'feeds.model.dim=8']),
    ('holds teacher, service', ['--set', 'teacher.data.path=x']),
    ('feed-adapter .*model.wide', ['--set', 'feed.model.wide=8']),
    ('video-adapter .*hstu', ['--students', 'feed=dlrm', 'video=hstu']),
    ('data.drift.rate', ['--rate=2']),
  ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_words(message, words):
  refuse(message, *words)


def test_a_record_is_read_as_it_was_written(tmp_path):
  asked = read('--students', 'a=dlrm:0,2', 'b=dcn', '--set', 'all.seed=3')
  record = settings.claim_directory(tmp_path, asked, {'teacher': {'seed': 1}})
  again = settings.read_record(tmp_path)
  assert again == record and again.settings == asked
  # The same again is no change.
  settings.claim_directory(tmp_path, asked, {'teacher': {'seed': 1}})


def test_changed_settings_are_refused_with_both_values(tmp_path):
  settings.claim_directory(tmp_path, read('--lag=1'), {})
  with pytest.raises(ConfigError, match='lag=1, not 2'):
    settings.claim_directory(tmp_path, read('--lag=2'), {})
  with pytest.raises(ConfigError, match='--windows=40, not 41'):
    words = ('--lag=1', '--windows=41')
    settings.claim_directory(tmp_path, read(*words), {})


def test_a_config_that_has_changed_is_refused(tmp_path):
  asked = read()
  before = {'teacher': {'model': {'dim': 8}}}
  settings.claim_directory(tmp_path, asked, before)
  with pytest.raises(ConfigError, match='teacher has model.dim=9 now.*with 8'):
    now = {'teacher': {'model': {'dim': 9}}}
    settings.claim_directory(tmp_path, asked, now)


def test_a_directory_of_something_else_is_refused(tmp_path):
  (tmp_path / 'notes.txt').touch()
  with pytest.raises(ConfigError, match='notes.txt and no exfm.json'):
    settings.claim_directory(tmp_path, read(), {})


def test_a_damaged_record_is_told(tmp_path):
  (tmp_path / settings.RECORD).write_text('{"format": 1, "settings": {')
  with pytest.raises(ConfigError, match='exfm.json cannot be read'):
    settings.read_record(tmp_path)


def test_the_words_of_the_processes(tmp_path):
  asked = read('--lag=2', '--windows=5', '--set', 'all.train.batch_size=64',
               '--set', 'students.train.batch_size=32',
               '--set', 'video.train.batch_size=16')  # fmt: skip
  layout = commands.Layout(tmp_path, asked)
  found = commands.list_processes(layout)
  assert list(found) == [
    'writer', 'service', 'teacher', 'feed-adapter', 'video-adapter',
    'search-adapter', 'feed-none', 'video-none', 'search-none',
  ]  # fmt: skip
  # The service understands its words as they are meant.
  options = annotate.parse_options(found['service'][3:])
  assert options.streams == ('feed', 'video', 'search')
  assert options.lag == 2 and options.attribution_s == 7200
  assert options.teacher == str(tmp_path / 'teacher')
  configs = commands.load_configs(layout)
  sizes = {name: c['train']['batch_size'] for name, c in configs.items()}
  assert sizes['teacher'] == 64 and sizes['feed-none'] == 32
  assert sizes['video-none'] == sizes['video-adapter'] == 16
  # The service asks for a checkpoint that is `lag` windows old.
  assert configs['teacher']['train']['keep_checkpoints'] == 10
  assert configs['teacher']['checkpoint']['at_part_ends']
  one, twin = configs['feed-adapter'], configs['feed-none']
  assert settings.find_difference(one, twin) == (
    'distill.method', 'adapter', 'none',
  )  # fmt: skip
  twin['distill']['method'] = 'adapter'
  assert settings.find_difference(one, twin) is None
  assert '--streams' in found['writer'] and 'video=1' in found['writer']


def test_a_shell_of_words_trains_what_the_config_says(tmp_path):
  layout = commands.Layout(tmp_path, read())
  words = commands.list_processes(layout)['search-none']
  assert words[1:3] == ['-m', 'genrec_jax.main']
  assert f'--workdir={tmp_path}/students/search-none' in words
  assert '--config=exfm_student_synthetic:deepfm' in words
  parts = f'--config.data.stream.directory={tmp_path}/annotated/search'
  assert parts in words


def test_the_base_of_the_students_has_columns_of_scores(tmp_path):
  layout = commands.Layout(
    tmp_path, read('--rows=50', '--fields=3', '--pairs=1')
  )
  base_data.write_base(layout)
  teacher = pq.read_table(layout.base('teacher'))
  students = pq.read_table(layout.base('students'))
  assert len(teacher) == 100
  assert students.column_names == [
    *teacher.column_names, 'teacher', 'teacher_weight',
  ]  # fmt: skip
  assert teacher.column_names == [
    'example_id', 'time', 'segment', 'c0', 'c1', 'c2', 'label',
  ]  # fmt: skip
  assert students['teacher'].to_pylist() == [0.0] * 100


@pytest.mark.parametrize(
  'columns, message',
  [
    (['example_id', 'time'], "no column 'label'"),
    (['example_id', 'label'], "no column 'time'"),
    (['example_id', 'time', 'label', 'teacher'], "a column 'teacher'"),
  ],
)
def test_a_base_of_ones_own_is_looked_at(tmp_path, columns, message):
  path = tmp_path / 'base.parquet'
  pq.write_table(pa.table(dict.fromkeys(columns, [1, 2])), path)
  words = ('--events=e', f'--base={path}', '--window_s=60')
  layout = commands.Layout(tmp_path, read(*words, '--students', 'a=dlrm'))
  with pytest.raises(ValueError, match=message):
    base_data.write_base(layout)


def test_a_base_that_is_no_parquet_is_told(tmp_path):
  path = tmp_path / 'base.csv'
  path.write_text('a,b\n')
  words = ('--events=e', f'--base={path}', '--window_s=60')
  layout = commands.Layout(tmp_path, read(*words))
  with pytest.raises(ValueError, match='cannot be read as a Parquet file'):
    base_data.write_base(layout)


def test_a_student_without_a_stream_is_told(tmp_path):
  students = settings.read_students(['home=dlrm', 'hom=dcn'], 0)
  with pytest.raises(ConfigError, match='is no directory'):
    command._check_events(tmp_path / 'no', students)
  command._check_events(tmp_path, students)  # they may come
  for name in ('home', 'mail', '.hidden'):
    (tmp_path / name).mkdir()
  with pytest.raises(ConfigError, match="no directory 'hom', but home, mail"):
    command._check_events(tmp_path, students)
  asked = dataclasses.replace(
    read('--students', 'home=dlrm:0,1,2'), stream=None, events=str(tmp_path),
    base='/b',
  )  # fmt: skip
  assert command._list_unread(asked) == ['mail']


def test_models_begin_with_the_share_of_labels(tmp_path):
  layout = commands.Layout(tmp_path, read('--rate=0.3'))
  config = commands.load_config(layout, 'feed-adapter')
  assert config['loss']['prior'] == [0.3]
  assert commands.load_config(layout, 'teacher')['loss']['prior'] == [0.3]
  own = read('--rate=0.3', '--set', 'feed.loss.prior=(0.5,)')
  config = commands.load_config(commands.Layout(tmp_path, own), 'feed-adapter')
  assert config['loss']['prior'] == [0.5]
  path = tmp_path / 'base.parquet'
  pq.write_table(pa.table({'label': [0, 1, 0, 0]}), path)
  words = ('--events=e', f'--base={path}', '--window_s=60')
  assert commands.find_rate(read(*words, '--students', 'a=dlrm')) == 0.25


def test_every_option_of_the_stream_says_what_it_is():
  said = command._describe_fields()
  assert {*said} == {f.name for f in dataclasses.fields(DriftLog)}
  assert all(len(text) > 9 for text in said.values())


def test_settings_are_json():
  asked = read('--students', 'a=dlrm:0,1,2')
  body = json.loads(json.dumps(settings.to_json(asked)))
  assert settings.from_json(body) == asked
  own = dataclasses.replace(asked, stream=None, events='/e', base='/b')
  assert settings.from_json(settings.to_json(own)) == own


def test_the_help_names_every_option_of_the_stream():
  text = command.make_parser().format_help()
  fields = {field.name for field in dataclasses.fields(command.DriftLog)}
  assert fields <= {*re.findall(r'--(\w+)', text)}
