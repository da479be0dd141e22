"""Tests of the study of TBSM: its data, its nets, its rows and its picture."""

import jax
import numpy as np
import pytest

from benchmarks import tbsm_nets, tbsm_picture, tbsm_study
from benchmarks.tbsm_nets import Net


def test_labels_of_the_paper_are_signs_of_the_planted_product():
  data = tbsm_study.make_data(0, 3, 300, 100)
  h, w = data['train_h'].astype(float), data['train_w'].astype(float)
  mean = np.einsum('btd,bd->bt', h, w).mean(1)
  np.testing.assert_array_equal(data['train_y'], mean > 0)
  assert data['test_h'].shape == (100, tbsm_study.EVENTS, tbsm_study.WIDTH)
  # Permutations are added up one by one, the same for all examples.
  rng, u = np.random.default_rng([3, 2]), None
  h = rng.uniform(-1, 1, (400, tbsm_study.EVENTS, tbsm_study.WIDTH))
  w = rng.uniform(-1, 1, (400, tbsm_study.WIDTH)).astype(np.float32)
  u = w.astype(float)
  for _ in range(10):
    order = rng.permutation(tbsm_study.WIDTH)
    u = u + np.stack([u[:, i] for i in order], axis=1)
  mean = np.einsum('btd,bd->b', h.astype(np.float32), u)
  data = tbsm_study.make_data(10, 3, 300, 100)
  same = np.concatenate([data['train_y'], data['test_y']]) == (mean > 0)
  assert same.mean() > 0.99  # but for rounding


def test_planted_labels_follow_their_probabilities():
  for target in ('rank 2, signs by place', 'recall'):
    data = tbsm_study.make_data(target, 1, 100, 20_000)
    p, y = data['test_p'], data['test_y']
    assert abs(p.mean() - y.mean()) < 0.01
    high = p > 0.9
    assert abs(p[high].mean() - y[high].mean()) < 0.02
  ranks = [
    np.linalg.matrix_rank(
      np.array([
        tbsm_study.plant(
          f'rank {rank}, same signs', np.random.default_rng(0),
          np.repeat(np.eye(5)[[i]], 10, 0)[None], np.eye(5)[[j]],
        )[0]
        for i in range(5) for j in range(5)
      ]).reshape(5, 5)
    )
    for rank in (1, 2, 5)
  ]  # fmt: skip
  assert ranks == [1, 2, 5]


@pytest.mark.parametrize('kind', tbsm_nets.KINDS)
def test_features_of_the_nets_by_loops(kind):
  net = Net(kind, heads=1 if kind == 'dot' else 2)
  params = net.init(jax.random.key(0), 4, 3)
  rng = np.random.default_rng(0)
  h, w = rng.normal(size=(5, 4, 3)), rng.normal(size=(5, 3))
  made = np.asarray(
    net._make_features(params, h.astype('f4'), w.astype('f4'), None)
  )
  assert made.shape == (5, net.count_inputs(4, 3))
  if kind in ('concat', 'attention'):
    return
  for b in range(5):
    for j in range(net.heads):
      a = np.eye(3) if kind == 'dot' else np.asarray(params['matrix'][j])
      a = a.T @ a if kind == 'def' else a
      for t in range(4):
        np.testing.assert_allclose(
          made[b, 4 * j + t], h[b, t] @ a @ w[b], rtol=1e-4, atol=1e-5
        )


def test_what_is_frozen_or_redrawn_is_not_trained():
  h = np.random.default_rng(0).normal(size=(6, 4, 3)).astype('f4')
  w = h[:, 0]

  def grads_of(net):
    params = net.init(jax.random.key(0), 4, 3)

    def loss(params):
      return net.apply(params, h, w, jax.random.key(1)).sum()

    return jax.grad(loss)(params)

  assert np.any(grads_of(Net('def'))['matrix'])
  assert not np.any(grads_of(Net('def', frozen=True))['matrix'])
  redrawn = grads_of(Net('attention', 2, redrawn=True))['projections']
  trained = grads_of(Net('attention', 2))['projections']
  for name in ('in', 'out'):
    assert np.any(trained[name]) and not np.any(redrawn[name])


def test_attention_is_that_of_numpy():
  net = Net('attention', heads=2)
  params = net.init(jax.random.key(0), 4, 3)
  rng = np.random.default_rng(0)
  h, w = rng.normal(size=(1, 4, 3)), rng.normal(size=(1, 3))
  own = jax.tree.map(lambda x: np.asarray(x, float), params)
  cut = own['projections']
  q, k, v = (
    (given @ own[name]) @ cut['in'][:, i]
    for i, (name, given) in enumerate(
      (('query', w[0]), ('key', h[0]), ('value', h[0]))
    )
  )
  mixed = []
  for j in range(2):
    part = slice(3 * j, 3 * j + 3)
    scores = np.exp(k[:, part] @ q[part] / np.sqrt(3))
    mixed.append(scores / scores.sum() @ v[:, part])
  wanted = np.concatenate(mixed) @ cut['out']
  made = net._make_features(params, h.astype('f4'), w.astype('f4'), None)
  np.testing.assert_allclose(made[0], wanted, rtol=1e-4, atol=1e-5)


def test_nets_of_planted_labels_are_of_one_size():
  sizes = {
    n: tbsm_study.count(net) for n, net in tbsm_study.match_sizes().items()
  }
  wanted = sizes['def, 4 heads']
  assert all(abs(size / wanted - 1) < 0.1 for size in sizes.values()), sizes


def test_auc_counts_ties_half():
  labels = np.array([1, 1, 0, 0])
  assert tbsm_study.count_auc(labels, np.array([3.0, 2, 2, 1])) == 0.875


def test_smoke_and_the_picture(tmp_path, rows):
  only = [
    '--only',
    'paper/K=0/dot',
    'published/K=0/def, 1',
    'planted/recall/dot',
  ]
  tbsm_study.main(['--smoke', '--results', str(tmp_path), *only])
  found = rows('tbsm_study')
  assert found['paper/K=0/dot']['seeds'] == 2
  assert 90 < found['planted/recall/dot']['ceiling'] < 100
  drawn = tbsm_picture.draw(list(found.values()))
  assert drawn.count('class="title"') == 2
  names = {name for name, *_ in tbsm_study.list_cases()}
  for kind in ('paper', 'published'):
    for k in tbsm_study.KS:
      for case in tbsm_picture.PAPER:
        own, net = case.split('/')
        assert own != kind or f'{kind}/K={k}/{net}' in names
  for target in tbsm_picture.TARGETS:
    for net in tbsm_picture.PLANTED:
      assert f'planted/{target}/{net}' in names
