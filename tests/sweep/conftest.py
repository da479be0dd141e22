"""Sweeps whose runs are `fake_run.py`."""

import io
import pathlib
import sys

import pytest

from genrec_jax.sweep import live_table, local, record
from genrec_jax.sweep.variants import read_variants

FAKE = pathlib.Path(__file__).with_name('fake_run.py')


def fake_command(words):
  return [sys.executable, str(FAKE), *words]


@pytest.fixture
def make_sweep(tmp_path):
  """(sweep, its variants): of `--set` words, written to a directory."""

  def make(*sets, root='sweep', config='quickstart:smoke', overrides=()):
    variants = read_variants(config, [], sets)
    sweep, wanted = record.extend_sweep(
      tmp_path / root, config, overrides, variants
    )
    record.write_sweep(sweep)
    return sweep, wanted

  return make


@pytest.fixture
def launch():
  """Runs variants to their ends; returns their states and what was printed."""

  def run(sweep, wanted, **options):
    out = io.StringIO()
    with live_table.LiveTable(out) as table:
      launcher = local.Launcher(
        sweep, wanted, local.LocalOptions(**options), table, fake_command
      )
      counts = launcher.run()
    return dict(counts), out.getvalue()

  return run
