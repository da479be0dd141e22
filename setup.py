"""Installs genrec_jax: `pip install -e .` or `pip install -e '.[dev]'`."""

import ast
import pathlib

import setuptools


def read_version() -> str:
  """`__version__` of the package, which is not imported for it."""
  source = pathlib.Path(__file__).parent / 'genrec_jax/__init__.py'
  for node in ast.parse(source.read_text()).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == '__version__':
      return ast.literal_eval(node.value)
  raise ValueError(f'{source} has no __version__')


setuptools.setup(
  name='genrec_jax',
  version=read_version(),
  description='Generative recommenders (HSTU, SASRec, ...) in JAX.',
  license='Apache-2.0',
  python_requires='>=3.11',
  packages=setuptools.find_packages(include=['genrec_jax*', 'pallas_kernels*']),
  package_data={
    'genrec_jax': ['py.typed'],
    'genrec_jax.report': ['templates/*'],
    'pallas_kernels.hstu_attention': ['tuned.json'],
    'pallas_kernels.jagged_embedding': ['*.cc', '*.h'],
  },
  install_requires=[
    'absl-py>=2.1',
    'array_record>=0.8.1',
    'etils[epath]>=1.9',
    'flax>=0.12.7',
    'grain>=0.2.15',
    'jax>=0.10.2',
    'jinja2>=3.1',
    'markupsafe>=2.1.2',  # of jinja2
    'ml_collections>=1.0',
    'numpy>=2.0',
    'optax>=0.2.5',
    'orbax-checkpoint>=0.12.1',
    'tensorboardX>=2.6.2.2',
  ],
  extras_require={
    'gpu': ['jax[cuda12]<0.12', 'jax-triton>=0.3.1'],
    'triton': ['triton>=3.6'],
    'tpu': ['jax[tpu]'],
    'parquet': ['pyarrow>=16.1'],
    'gcs': ['gcsfs>=2024.2'],  # checkpoints on gs://, with etils' paths
    'docs': [  # the site: `mkdocs serve`
      'mkdocs>=1.6,<2',
      'mkdocs-material>=9.6,<10',
      'mkdocstrings[python]>=1.0',
      'ruff>=0.15',  # formats signatures
    ],
    'dev': [
      'hypothesis>=6',
      'pandas>=2.2',  # frames that `fit` reads, in tests
      'polars>=1',
      'psutil>=5.9',
      'pyarrow>=16.1',
      'pytest>=8.2',
      'pytest-xdist>=3.6',
      'ruff>=0.15',
      'scikit-learn>=1.5',
    ],
  },
)
