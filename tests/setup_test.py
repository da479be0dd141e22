"""What setup.py promises: extras, and the files it ships."""

import pathlib
import re
import runpy

import pytest
import setuptools

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope='module')
def settings():
  """The arguments of `setuptools.setup`."""
  with pytest.MonkeyPatch.context() as patch:
    given = {}
    patch.delenv('GENREC_PREBUILT', raising=False)
    patch.setattr(setuptools, 'setup', lambda **more: given.update(more))
    runpy.run_path(str(ROOT / 'setup.py'))
  return given


def test_all_devices_have_one_generation_of_jax(settings):
  lists = [settings['install_requires'], *settings['extras_require'].values()]
  named = [re.fullmatch(r'jax(\[\w+\])?([<>=].*)', x) for y in lists for x in y]
  assert len({match[2] for match in named if match}) == 1
  devices = {match[1] for match in named if match}
  assert devices == {None, '[cuda12]', '[cuda13]', '[tpu]'}


def test_gpu_is_another_name_of_a_cuda(settings):
  extras = settings['extras_require']
  assert extras['gpu'] == extras['cuda12']


def test_every_file_that_it_names_is_there(settings):
  folders = settings.get('package_dir', {})
  for package, patterns in settings['package_data'].items():
    folder = ROOT / folders.get(package, package.replace('.', '/'))
    for pattern in patterns:
      assert any(folder.glob(pattern)), f'{package} has no {pattern}'


def test_every_extra_that_words_name_is_there(settings):
  texts = [ROOT / 'README.md']
  for folder, kind in (('docs', 'md'), ('genrec_jax', 'py'), ('tests', 'py')):
    texts += (ROOT / folder).rglob(f'*.{kind}')
  texts += (ROOT / 'pallas_kernels').rglob('*.py')
  named = set()
  for path in texts:
    for found in re.findall(
      r"install [^\n]*?'(?:genrec_jax|\.)\[([\w,]+)\]'", path.read_text()
    ):
      named |= set(found.split(','))
  assert (
    {'cuda12', 'dev', 'parquet'} <= named <= set(settings['extras_require'])
  )
