"""Installs genrec_jax: `pip install -e .` or `pip install -e '.[dev]'`.

With GENREC_PREBUILT=1 the wheel has the C++ operator compiled, which needs JAX
and a C++ compiler: `GENREC_PREBUILT=1 pip wheel --no-build-isolation .`
"""

import ast
import os
import pathlib
import sys

import setuptools
from setuptools.command.build_py import build_py

JAX = 'jax{}>=0.10.2'  # one generation, whatever the device
WHEELS = '70.1'  # the first setuptools that makes wheels by itself
CUDA = {
  f'cuda{version}': [JAX.format(f'[cuda{version}]'), 'jax-triton>=0.3.1']
  for version in (12, 13)
}


def read_version() -> str:
  """`__version__` of the package, which is not imported for it."""
  source = pathlib.Path(__file__).parent / 'genrec_jax/__init__.py'
  for node in ast.parse(source.read_text()).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == '__version__':
      return ast.literal_eval(node.value)
  raise ValueError(f'{source} has no __version__')


def prebuilt_commands() -> dict[str, type]:
  """Commands that make a wheel for this platform, with the C++ compiled."""
  root = pathlib.Path(__file__).resolve().parent
  sys.path.insert(0, str(root))
  # Here, since it is not needed otherwise: neither JAX nor a new setuptools.
  # pip does not look at versions where builds are not isolated.
  try:
    from setuptools.command.bdist_wheel import bdist_wheel

    from pallas_kernels.jagged_embedding import prebuilt
  except ModuleNotFoundError as error:
    sys.exit(
      f'GENREC_PREBUILT=1 needs setuptools>={WHEELS} and {JAX.format("")} '
      f'where it builds: setuptools is {setuptools.__version__} here, and '
      f'there is no module {error.name}'
    )

  libraries = []

  class BuildPython(build_py):
    def run(self):
      super().run()
      if not self.editable_mode:  # whose sources change
        place = prebuilt.FOLDER.relative_to(root)
        libraries.extend(prebuilt.build(pathlib.Path(self.build_lib) / place))

  class Wheel(bdist_wheel):
    def finalize_options(self):
      super().finalize_options()
      self.root_is_pure = False

    def get_tag(self):
      # ctypes loads the library, so that any Python can.
      return 'py3', 'none', prebuilt.platform_tag(libraries)

  return {'build_py': BuildPython, 'bdist_wheel': Wheel}


setuptools.setup(
  name='genrec_jax',
  version=read_version(),
  description='Generative recommenders (HSTU, SASRec, ...) in JAX.',
  license='Apache-2.0',
  python_requires='>=3.11',
  packages=[
    *setuptools.find_packages(include=['genrec_jax*', 'pallas_kernels*']),
    'genrec_jax.configs',
  ],
  # Files that `genrec` reads, not modules that anything imports: in a checkout
  # they stay beside the package (see genrec_jax/config/files.py).
  package_dir={'genrec_jax.configs': 'configs'},
  package_data={
    'genrec_jax': ['py.typed'],
    'genrec_jax.report': ['templates/*'],
    'pallas_kernels.jagged_embedding': ['*.cc', '*.h'],
  },
  entry_points={'console_scripts': ['genrec = genrec_jax.__main__:run']},
  cmdclass=(
    prebuilt_commands() if os.environ.get('GENREC_PREBUILT') == '1' else {}
  ),
  install_requires=[
    'absl-py>=2.1',
    'array_record>=0.8.1',
    'etils[epath]>=1.9',
    'flax>=0.12.7',
    'grain>=0.2.15',
    JAX.format(''),
    'jinja2>=3.1',
    'markupsafe>=2.1.2',  # of jinja2
    'ml_collections>=1.0',
    'numpy>=2.0',
    'optax>=0.2.5',
    'orbax-checkpoint>=0.12.1',
  ],
  extras_require={
    **CUDA,
    'gpu': CUDA['cuda12'],  # of most drivers
    'triton': ['triton>=3.6'],
    'tpu': [JAX.format('[tpu]')],
    'parquet': ['pyarrow>=16.1'],
    'gcs': ['gcsfs>=2024.2'],  # checkpoints on gs://, with etils' paths
    's3': ['s3fs>=2024.2'],  # data and predictions on s3://
    # python-dateutil: kubernetes and bigquery want different ones, and pip
    # would try a hundred releases before it finds that out.
    'xm': ['xmanager>=0.8.5.post1,<0.9', 'python-dateutil<3'],
    'docs': [  # the site: `mkdocs serve`
      'mkdocs>=1.6,<2',
      'mkdocs-material>=9.6,<10',
      'mkdocstrings[python]>=1.0',
      'ruff>=0.15',  # formats signatures
    ],
    'dev': [
      'gcp-storage-emulator>=2024.8',
      'gcsfs>=2024.2',
      'hypothesis>=6',
      'ipykernel>=6.29',  # notebooks are run as tests
      'nbclient>=0.10',
      'nbformat>=5.10',
      'pandas>=2.2',  # frames that `fit` reads, in tests
      'polars>=1',
      'psutil>=5.9',
      'pyarrow>=16.1',
      'pytest>=8.2',
      'pytest-xdist>=3.6',
      'ruff>=0.15',
      'scikit-learn>=1.5',
      'tensorboardX>=2.6.2.2',  # reads events, in tests
      f'setuptools>={WHEELS}',  # wheels with compiled libraries
    ],
  },
)
