"""Tests of the benchmark of restored trainings, and its smoke run."""

import dataclasses

import pytest

from benchmarks import restore_quality as bench


@pytest.mark.slow
def test_smoke_loses_nothing_at_32_bits(tmp_path, rows, monkeypatch, capsys):
  monkeypatch.setattr(bench, 'PLANS', ((32, 'exact'), (4, 'adaptive')))
  monkeypatch.setattr(bench, 'NUDGES', 1)
  command = ['--smoke', '--runs', str(tmp_path / 'runs'), '--only', 'clicks']
  command += ['--results', str(tmp_path)]
  bench.main(command)
  found = rows('restore_quality')
  exact = found['clicks/restored/exact/32 bits/3 times']
  assert exact['more'] == exact['least'] == exact['most'] == 0
  assert found['clicks/read/exact/32 bits']['more'] == 0
  four = found['clicks/restored/adaptive/4 bits/3 times']
  assert four['more'] != 0 and four['claimed'] and 'claimed' not in exact
  assert found['clicks/read/adaptive/4 bits']['more'] != four['more']
  assert found['clicks/nudged/1']['more'] != 0
  # What has ended is not run again.
  capsys.readouterr()
  bench.main(command)
  assert 'core-s' not in capsys.readouterr().out
  assert len(bench.finished(tmp_path / 'runs')) == len(found) == 6


def test_runs_are_compared_with_those_of_their_seed():
  def line(case, seed, logloss):
    fields = dataclasses.asdict(case)
    measured = dict(logloss=logloss, auc=0.5, steps=9, core_s=1.0)
    return {'case': case.name, 'seed': seed, **fields, **measured}

  plain = bench.Case('clicks', 'plain')
  four = bench.Case('clicks', 'restored', 3, 4, 'adaptive')
  lines = [line(four, 1, 0.5), line(four, 0, 0.404)]
  lines += [line(plain, 0, 0.4), line(plain, 1, 0.5)]
  first, row = bench.summaries(lines, ['clicks'])
  assert first['case'] == 'clicks/plain' and 'more' not in first
  assert (row['least'], row['most']) == (0, pytest.approx(1))
  assert row['more'] == pytest.approx(0.5) and row['seeds'] == 2
  # Student's t with one degree of freedom.
  assert row['more_95'] == pytest.approx(12.71 * 0.5, rel=1e-3)
  assert row['verdict'] == 'not resolved'
  # (1.96 * std / budget)^2, with a std of 0.5 ** 0.5
  assert row['needed'] == pytest.approx(1.96**2 * 0.5 / 0.01**2, rel=1e-3)
  assert bench.summaries(lines, ['frappe']) == []


def test_what_is_claimed():
  claimed = {
    (c.restores, c.bits)
    for c in bench.cases('clicks', [1, 3, 20, 100], True)
    if c.claimed
  }
  assert claimed == {
    *((k, 8) for k in (1, 3, 20, 100)),
    *((k, 4) for k in (1, 3, 20)),
    *((1, 3), (3, 3), (1, 2)),
  }
  rest = bench.cases('clicks', [1, 3, 20, 100], False)
  assert not any(c.claimed for c in rest) and len(rest) == 6 + 16


@pytest.mark.parametrize(
  'mean, half, says',
  [(0.001, 0.002, 'within'), (0.05, 0.01, 'above'), (0.0, 0.1, 'not resolved')],
)
def test_a_verdict_needs_the_interval_on_one_side(mean, half, says):
  assert bench.verdict(mean, half) == says
