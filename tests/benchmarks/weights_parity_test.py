"""Tests of the comparison with published modules, beside a peer in NumPy."""

import json
import pathlib
import subprocess

import numpy as np
import pytest

from benchmarks import weights_parity
from genrec_jax.weights import convert, safetensors
from genrec_jax.weights.published import MODELS, Sizes
from tests.sequences import Events
from tests.weights import published


@pytest.fixture
def peer(monkeypatch):
  """A peer that states the published formulas instead of running them."""

  def run(command, check, stdout):
    python, program, spec, out = command
    assert python == 'python-with-torch' and pathlib.Path(program).exists()
    spec = pathlib.Path(spec)
    histories = np.load(spec.with_suffix('.npz'))
    for case in json.loads(spec.read_text())['cases']:
      state, outputs = answer(case, histories)
      safetensors.write_file(f'{out}/{case["case"]}.pt', state)
      np.savez(f'{out}/{case["case"]}.npz', outputs=outputs)
    about = {'shapes': {'hstu': {'w': [2]}}, 'versions': ['numpy']}
    pathlib.Path(out, 'about.json').write_text(json.dumps(about))

  monkeypatch.setattr(subprocess, 'run', run)
  monkeypatch.setattr(weights_parity, 'find_commit', lambda checkout: 'abc')
  monkeypatch.setattr(convert, 'read_arrays', safetensors.open_file)


def answer(case, histories):
  """(state dict, outputs padded as the published code does it)."""
  names = {'hstu_large': 'hstu'}.get(case['case'], case['case'])
  positions = case['max_len'] + case['extra_positions']
  sizes = Sizes(
    case['rows'], case['dim'], positions, case['blocks'], case['dim']
  )
  if names == 'hstu':
    gated = case['heads'] * case['dv']
    hidden = 2 * gated + 2 * case['heads'] * case['dqk']
    sizes = Sizes(*list(vars(sizes).values())[:4], hidden, gated)
  rng = np.random.default_rng(0)
  state = {
    pair.published: (
      rng.normal(size=pair.shape).astype(np.float32) * 0.3
      if pair.own
      else pair.join()
    )
    for pair in MODELS[names].make_pairs(sizes)
  }
  if names == 'sasrec_pytorch_2024':
    state['pos_emb.weight'][0] = 0
  wide = {n: np.asarray(x, np.float64) for n, x in state.items()}
  outputs = np.zeros((len(histories['lengths']), positions, case['dim']))
  columns = (histories[key] for key in ('lengths', 'items', 'times'))
  for row, n, items, times in zip(outputs, *columns, strict=True):
    events = Events(items[:n], times[:n], items[1 : n + 1], times[1 : n + 1])
    if names == 'hstu':
      widths = case['heads'], case['dqk'], case['dv'], positions
      row[:n] = published.hstu(wide, *widths, events)
    else:
      begin = len(row) - n if case['classic'] else 0
      row[begin : begin + n] = published.sasrec(
        wide, case['heads'], events, case['classic']
      )
  return state, outputs


def test_smoke_beside_a_peer(tmp_path, rows, peer):
  weights_parity.main(
    ['--smoke', '--results', str(tmp_path), '--peer_python=python-with-torch']
    + [f'--{name}={tmp_path}' for name in weights_parity.ROWS]
    + [f'--shapes={tmp_path / "shapes.json"}']
  )
  found = rows('weights_parity')
  assert set(found) == set(weights_parity.make_cases(True))
  for case, row in found.items():
    assert row['max_difference'] < 1e-5 * row['max_output'], case
    assert row['max_logit_difference'] < 1e-4
    assert row['same_top_10'] == 1
    assert row['peer'] == 'numpy' and row['commit'] == 'abc'
    assert ('short_max_difference' in row) == case.startswith('sasrec_pytorch')
  shapes = json.loads((tmp_path / 'shapes.json').read_text())
  assert shapes == {'hstu': {'w': [2]}}


def test_without_a_peer_there_is_nothing_to_compare(capsys):
  with pytest.raises(SystemExit, match='--peer_python and --published'):
    weights_parity.main([])
