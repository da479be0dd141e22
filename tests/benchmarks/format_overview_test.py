"""The overview takes each figure from where it was measured."""

from benchmarks import format_overview


def test_each_figure_is_of_its_source():
  quality = {
    'clicks/bfloat16': {'core_s': 20.0},
    'clicks/mx9 cast': {'ne_minus_%': 0.5, 'ne_minus_%_se': 0.1, 'seeds': 3},
    'clicks/mx9': {'ne_minus_%': 2.0, 'seeds': 1, 'core_s': 30.0},
  }
  rows = format_overview.put_together(
    {'mx9': {'qsnr_db': 46.6}}, quality, {'mx9, encode': {'copy_x': 1.25}}
  )
  (row,) = [row for row in rows if row['case'] == 'mx9']
  assert row == {
    'case': 'mx9', 'bits': 9.0, 'bytes': 72, 'qsnr_db': 46.6,
    'cast_ne_%': 0.5, 'cast_se': 0.1, 'trained_ne_%': 2.0, 'seeds': 1,
    'training_x': 1.5, 'encode_x': 1.25,
  }  # fmt: skip
  assert len(rows) == 12


def test_the_command_reads_what_is_committed(tmp_path, capsys):
  format_overview.main(['--smoke', '--results', str(tmp_path)])
  assert 'mxfp4_e2m1' in capsys.readouterr().out
