"""The charts of docs/ are drawn from the committed results."""

from benchmarks import pictures


def test_every_picture_is_that_of_its_results(capsys):
  assert pictures.main(['--check']) == 0, capsys.readouterr().out


def test_a_picture_that_differs_is_drawn(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(pictures, 'DOCS', tmp_path)
  assert pictures.main(['--check']) == 1
  assert 'docs/scaling_law.svg differs' in capsys.readouterr().out
  assert not list(tmp_path.iterdir())
  assert pictures.main([]) == 0 and pictures.main(['--check']) == 0
