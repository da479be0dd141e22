"""The comparison of TBSM with the public code, without that code."""

import jax
import numpy as np
import pytest

from benchmarks import tbsm_parity


def test_every_parameter_has_a_name_of_torch():
  for inner, matrices in (('dot', 0), ('def', 1)):
    _, params, tables = tbsm_parity.draw_model(inner)
    named = tbsm_parity.name_weights(params, tables)
    own = jax.tree.leaves((params, tables))
    assert sum(x.size for x in named.values()) == sum(x.size for x in own)
    assert sum(name.endswith('.A') for name in named) == matrices
  assert named['ams.0.A'].shape == (1, 15, 15)
  assert named['dlrm.top_l.0.weight'].shape == (15, 22)


def test_the_answers_of_a_peer_are_compared(tmp_path, rows, monkeypatch):
  monkeypatch.setattr(tbsm_parity, 'STEPS', 1)
  monkeypatch.setattr(tbsm_parity, 'WARM', 1)

  def answer(args, batch, models):
    del args
    found = {
      inner: np.asarray(jax.nn.sigmoid(tbsm_parity.score(*model, batch)))
      for inner, model in models.items()
    }
    found['dot'] = found['dot'] + 0.25
    return found | {'core_s': np.ones(3), 'version': np.array('2.0')}

  monkeypatch.setattr(tbsm_parity, 'ask_peer', answer)
  paths = ['--peer_python=p', '--tbsm=t', '--dlrm=d']
  tbsm_parity.main(['--smoke', '--results', str(tmp_path), *paths])
  found = rows('tbsm_parity')
  assert found['forward/def']['difference'] == 0
  assert found['forward/dot']['difference'] == pytest.approx(0.25, rel=1e-4)
  assert found['step/def']['peer'] == 'torch 2.0'
  assert found['step/def']['peer_core_ms'] == 1000
