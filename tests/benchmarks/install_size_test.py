"""Tests of the install-size benchmark."""

import pathlib
import sys

import pytest

from benchmarks import install_size


@pytest.fixture
def site_packages(tmp_path):
  for name, size in {
    'big/a.so': 700,
    'big/__pycache__/a.cpython-311.pyc': 50,
    'small/__init__.py': 200,
    'single.py': 100,
  }.items():
    path = tmp_path / 'site' / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'x' * size)
  (tmp_path / 'site' / 'link').symlink_to('big/a.so')
  return tmp_path / 'site'


def test_files_are_summed_with_bytecode_apart(site_packages):
  assert install_size.sizes(site_packages) == (
    {'big': 700, 'small': 200, 'single.py': 100},
    50,
  )


@pytest.mark.parametrize(
  ('listed', 'unwanted'),
  [
    ('[{"name": "jax", "version": "1"}]', ''),
    (
      '[{"name": "tensorflow-cpu", "version": "2"},'
      ' {"name": "torch", "version": "2"},'
      ' {"name": "tensorstore", "version": "3"}]',
      'tensorflow-cpu torch',
    ),
  ],
)
def test_what_must_not_be_there_is_named(
  site_packages, monkeypatch, listed, unwanted
):
  monkeypatch.setattr(install_size, '_run', lambda *command: listed)
  rows = install_size.look(pathlib.Path(sys.executable), str(site_packages))
  assert rows[0]['unwanted'] == unwanted
  assert rows[0]['bytes'] == 1000
  assert [(r['case'], r['share']) for r in rows[1:]] == [
    ('big', 0.7),
    ('small', 0.2),
    ('single.py', 0.1),
  ]


@pytest.mark.slow
def test_smoke_looks_at_this_environment(tmp_path, rows):
  install_size.main(['--smoke', '--results', str(tmp_path)])
  found = rows('install_size')
  assert found['total']['bytes'] > found['jaxlib']['bytes'] > 1 << 20
