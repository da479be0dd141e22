"""Tests of the benchmark of bytes on the wire."""

import dataclasses

import jax
import pytest

from benchmarks import hlo, sharding, sharding_formulas
from benchmarks.sharding_formulas import Case
from genrec_jax.embedding.exchange import KINDS
from genrec_jax.embedding.plan import SCHEMES
from genrec_jax.parallel import slices


def test_smoke_finds_what_the_formulas_say(tmp_path, rows):
  sharding.main(['--smoke', '--results', str(tmp_path)])
  found = rows('sharding')
  sums = found['cpu/2x4/8/table_row_wise/pooled/float32/forward/all-to-all/dev']
  # 8 tables, 8 examples, 64 columns: to the other 3 devices of the host.
  assert sums['bytes'] == sums['formula_bytes'] == 3 * 8 * 8 * 64 * 4
  between = found[
    'cpu/2x4/8/table_row_wise/pooled/float32/backward/all-to-all/host'
  ]
  assert between['bytes'] == between['published_bytes'] == 8 * 8 * 64 * 4 / 2
  narrow = found[
    'cpu/2x4/8/table_wise/ragged/int8/backward/all-to-all/host+dev'
  ]
  assert narrow['dtype'] == 's32+u8' and 'emulated' in narrow['note']
  assert narrow['bytes'] == 7 * (8 * 16 * (64 + 8) + 2 * 4)


def test_it_fails_where_they_differ(monkeypatch):
  def another(c, step, over):
    yes = sharding_formulas.Sent(step, 'scalars', 'all-reduce', over, 1, '1')
    return dataclasses.replace(yes, over=over)

  monkeypatch.setattr(sharding_formulas, 'scalar', another)
  case = sharding.smallest('cpu')[0]
  rows = list(sharding.measured(case, jax.devices()))
  wrong = 'pooled/float32/backward/all-reduce/rep.host.dev '
  with pytest.raises(SystemExit, match=f'program differ:\n(.|\n)*{wrong}'):
    sharding.check(rows)


def test_a_collective_nobody_foresaw_is_an_error(monkeypatch):
  case = sharding.smallest('cpu')[0]
  real = {
    'ids': [],
    'forward': [hlo.Collective('all-gather', (('f32', (8,)),), ((0, 1),))],
    'backward': [],
  }
  monkeypatch.setattr(sharding, 'compiled', lambda c, devices: real)
  rows = list(sharding.measured(case, None))
  (unknown,) = (r for r in rows if r['what'] == 'unknown')
  assert unknown['bytes'] == 16 and unknown['formula_bytes'] == 0
  missing = [r for r in rows if r['what'] != 'unknown']
  assert all(r['bytes'] == 0 < r['formula_bytes'] for r in missing)
  with pytest.raises(SystemExit, match='all-gather/[?]'):
    sharding.check(rows)


def test_every_scheme_and_exchange_is_asked():
  for target in sharding.TARGETS:
    cases = list(sharding.cases(target))
    names = [dataclasses.astuple(case) for case in cases]
    assert len(set(names)) == len(names)
    whole = [c for c in cases if c.replicas == 1 and c.codec == 'float32']
    assert {c.scheme for c in whole if c.kind == 'pooled'} == set(SCHEMES)
    assert {c.kind for c in whole} == {'pooled', *KINDS}
    assert {c.replicas for c in cases} == {1, 2}


@pytest.mark.parametrize('scheme', ['table_wise', 'row_wise'])
def test_published_formulas_hold_where_tables_are_even(scheme):
  for step in ('forward', 'backward'):
    (sent,) = (
      s
      # Bags so long that rows do not travel in place of their sums.
      for s in sharding_formulas.predicted(Case('cpu', scheme, length=8))
      if s.step == step and s.what == 'rows'
    )
    assert sent.bytes == sent.published


def test_it_says_what_to_install(monkeypatch):
  monkeypatch.setattr(slices.importlib.util, 'find_spec', lambda _: None)
  with pytest.raises(SystemExit, match='pip install --no-deps libtpu'):
    sharding.main(['--smoke', '--targets', 'tpu'])


@pytest.mark.aot_tpu
@pytest.mark.skipif(slices.why_not() is not None, reason=str(slices.why_not()))
# JAX warns that the installed TPU library finds no TPU.
@pytest.mark.filterwarnings('ignore')
def test_smoke_for_a_tpu(tmp_path, rows):
  sharding.main(['--smoke', '--targets', 'tpu', '--results', str(tmp_path)])
  found = rows('sharding')
  case = 'tpu/4x4/8/table_wise/ragged/int8/forward/ragged-all-to-all/host+dev'
  assert found[case]['bytes'] == found[case]['formula_bytes']
  assert found[case]['dtype'] == 'u8'
