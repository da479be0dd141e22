"""Where a run comes from, without what nobody else shall read."""

import subprocess

import pytest

from genrec_jax import provenance


@pytest.mark.parametrize(
  'text, masked',
  [
    ('s3://AKIA:sEcr/et@b/a.csv', 's3://***@b/a.csv'),
    ('ftp://u:p@ss@host/a', 'ftp://***@host/a'),
    ('--token abc --n=1', '--token *** --n=1'),
    ("{'Password': 'a b'}", "{'Password': ***}"),
    ('ACCESS_KEY=abc pwd=a', 'ACCESS_KEY=*** pwd=***'),
    ('AccountKey=abc==;x', 'AccountKey=***'),
    ('credential: abc, passphrase: d', 'credential: ***, passphrase: ***'),
    ('s3://AKIA:sEcret@b/a.csv', 's3://***@b/a.csv'),
    ('--config.data.path=gs://me@b/a', '--config.data.path=gs://***@b/a'),
    ('https://h/a?X-Sig=abc&e=1', 'https://h/a?***'),
    ('--token=abc --n=1', '--token=*** --n=1'),
    ('aws_secret_access_key: abc', 'aws_secret_access_key: ***'),
    ('model.dim=3 a@b.c', 'model.dim=3 a@b.c'),
    ('batch_tokens=16384 tokens=3', 'batch_tokens=16384 tokens=3'),
    ('eval.batch_tokens=16384', 'eval.batch_tokens=16384'),
  ],
)
def test_secrets_are_masked(text, masked):
  assert provenance.mask_secrets(text) == masked
  tree = {'a': [(text,)], 'b': 1.0, 'c': None}
  assert provenance.mask_all(tree) == {'a': [(masked,)], 'b': 1.0, 'c': None}
  assert provenance.mask_all({'api_key': 'x', 'n': 1}) == {
    'api_key': '***', 'n': 1,
  }  # fmt: skip


@pytest.fixture
def remember(monkeypatch):
  """`remember_command`, undone afterwards."""
  for name in ('argv', 'overrides'):
    monkeypatch.setattr(provenance._Command, name, ())
  return provenance.remember_command


def test_the_command_can_be_typed_again(remember):
  assert provenance.describe_command() == ''
  assert provenance.list_set_keys() == []
  words = ['--config=a.py', '--config.data.path=my log.csv', '--workdir=w']
  remember(['/x/genrec_jax/main.py', *words], ['data.path=my log.csv', 'a.b'])
  assert provenance.describe_command() == (
    'python -m genrec_jax.main --config=a.py '
    "'--config.data.path=my log.csv' --workdir=w"
  )
  assert provenance.list_set_keys() == ['data.path', 'a.b']
  remember(['/usr/bin/genrec', 'train', '--config.data.path=s3://k:s@b'], [])
  assert provenance.describe_command() == (
    "genrec train '--config.data.path=s3://***@b'"
  ) or provenance.describe_command() == (
    'genrec train --config.data.path=s3://***@b'
  )


def test_the_commit_is_that_of_the_checkout_alone(tmp_path):
  def git(*words):
    done = subprocess.run(
      ['git', '-C', tmp_path, '-c', 'user.name=a', '-c', 'user.email=a@b.c']
      + list(words),
      check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()

  git('init', '-q')
  (tmp_path / 'a').write_text('1')
  git('add', 'a')
  git('commit', '-qm', 'a')
  inside = tmp_path / 'site-packages'
  inside.mkdir()
  assert provenance.find_commit(inside) is None
  commit = git('rev-parse', 'HEAD')
  assert provenance.find_commit(tmp_path) == commit[:12]
  provenance.find_commit.cache_clear()
  (tmp_path / 'a').write_text('2')
  assert provenance.find_commit(tmp_path) == f'{commit[:12]}+'
  assert provenance.find_version()[0].isdigit()
