"""The notebooks run from start to end, and what is stored in them is a run.

They are executed in an empty directory, as a user of a wheel would do; with
GENREC_INSTALLED, the directory of an installed wheel, against it.
"""

import ast
import os
import pathlib
import re
import sys
import xml.etree.ElementTree

import pytest

from genrec_jax import notebook
from genrec_jax.config import ConfigError, sweeps
from genrec_jax.report.axes import linear_axis
from genrec_jax.report.charts import Chart, Series
from tests.marks import slow

nbformat = pytest.importorskip('nbformat', reason="pip install -e '.[dev]'")
nbclient = pytest.importorskip('nbclient', reason="pip install -e '.[dev]'")

ROOT = pathlib.Path(__file__).parents[2]
INSTALLED = os.environ.get('GENREC_INSTALLED')
FOLDER = ROOT / 'launch' / 'notebooks'
NAMES = ('quickstart', 'tpu')
# What is of the tests and not of a user; the notebooks set it themselves.
SETTINGS = ('JAX_NUM_CPU_DEVICES', 'NPROC', 'JAX_PLATFORMS')
MOST_LINES, MOST_COLUMNS, MOST_BYTES = 10, 80, 100_000
# A place on a machine: /tmp/x, C:\x; and not a/b, </b> or https://x.
PLACE = re.compile(r'(?<![\w.:/<*)])/[a-z]+/\w|\b[A-Z]:\\|site-packages')
COLOR = re.compile(
  r'\x1b\[[\d;]*m'
)  # of what JAX draws with rich, if it is there
# What must stand in the outputs, in this order.
SHOWN = {
  'quickstart': (
    r'user,item,time\ncustomer 0,',
    r'step 200/200 · batch loss \d',
    r'hr@5 +0\.[89]\d+ +0\.1',  # that of popularity is 5 of 35
    r"Picture\(titles=\('Loss', 'NDCG@10'\)\)",
    r'(?s)(?=.*parmesan)(?=.*pepper)(?=.*onions)\d\.\d+  \w+',
    r'Why \w+( \w+)?\?\n +spaghetti [+-]0',
    r'2 runs in sweep, 1 at a time',
    r'(?s)001_learning_rate=0\.01: done.*\n2 done\n',
    r'001 +0\.01 +0\.[56]\d+ .*\n000 +0\.0001 +0\.[234]',
    r"Picture\(titles=\('NDCG@10, valid',\)\)",
    r"\{'ann': \[\('(blueberries|butter|maple syrup)', \d",
  ),
  'tpu': (
    r'\d found',
    r'JAX \d+\.\d+\S* has 8 devices of kind cpu',
    r"\{'rep': 1, 'host': 2, 'dev': 4\}\nhost 0: \S+:0 ",
    r'step 90/90 · batch loss 0\.\d',
    r'auc +0\.7\d+ +0\.5000',
    r"\(31912, 16\) P\(\('rep', 'host', 'dev'\),\)",
    r'(?s):0  rows +0 to  3,989 +255,296 bytes\n.*:7 .* 255,296 bytes',
    r'CPU 7',
    r'\d+ lines, of which \d+ have [\d,]+ events',
    r'% ━+ +(all-reduce|all-to-all|pmax|psum)\n',
    r'15  base +- +- +8 ',
    r'30  delta +15 +3\d\.\d% +8 ',
    r'75  base +- +- +8 ',
    r'90  delta +75 .* whole',
  ),
}


def read(name: str):
  book = nbformat.read(FOLDER / f'{name}.ipynb', as_version=4)
  nbformat.validate(book)
  return book


def code_cells(book) -> list:
  return [cell for cell in book.cells if cell.cell_type == 'code']


def text_of(output) -> str:
  if output.output_type == 'stream':
    return output.text
  return output.get('data', {}).get('text/plain', '')


def check_outputs(name: str, book) -> None:
  """All cells have run, in order, without an error, and show what they must."""
  cells = code_cells(book)
  assert [c.execution_count for c in cells] == list(range(1, len(cells) + 1))
  outputs = [output for cell in cells for output in cell.outputs]
  assert all(output.output_type != 'error' for output in outputs)
  printed = [o for o in outputs if o.output_type == 'stream']
  assert not [o.text for o in printed if o.name == 'stderr']
  text = COLOR.sub('', '\n'.join(map(text_of, outputs)))
  assert not re.search('warning', text, re.IGNORECASE)
  assert not PLACE.findall(text)
  at = 0
  for pattern in SHOWN[name]:
    found = re.compile(pattern).search(text, at)
    assert found, f'{pattern} is not in\n{text[at:]}'
    at = found.end()


@pytest.mark.parametrize('name', ['tpu', slow('quickstart')])
def test_a_notebook_runs_from_start_to_end(name, tmp_path):
  book = read(name)
  for cell in code_cells(book):
    cell.outputs, cell.execution_count = [], None
  env = {n: v for n, v in os.environ.items() if n not in SETTINGS}
  client = nbclient.NotebookClient(
    book,
    timeout=600,
    kernel_name='python3',  # of this Python
    coalesce_streams=True,
    resources={'metadata': {'path': str(tmp_path)}},
  )
  client.execute(env=env | {'PYTHONPATH': INSTALLED or str(ROOT)})
  check_outputs(name, book)
  assert not list(tmp_path.iterdir()), 'it leaves files behind'


@pytest.mark.parametrize('name', NAMES)
def test_what_is_stored_is_a_whole_run(name):
  check_outputs(name, read(name))
  text = (FOLDER / f'{name}.ipynb').read_text()
  assert len(text) < MOST_BYTES
  # Nothing of who ran it, or when.
  assert '"iopub' not in text and '"version": "3.' not in text


@pytest.mark.parametrize('name', NAMES)
def test_cells_are_short_and_define_nothing(name):
  for cell in code_cells(read(name)):
    lines = cell.source.split('\n')
    assert len(lines) <= MOST_LINES, cell.source
    assert max(map(len, lines)) <= MOST_COLUMNS, cell.source
    plain = [x for x in lines if not x.lstrip().startswith('%')]
    for node in ast.walk(ast.parse('\n'.join([*plain, '']))):
      kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
      assert not isinstance(node, kinds), cell.source
      if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names]
        names = [getattr(node, 'module', None) or n for n in names]
        packages = {n.split('.')[0] for n in names}
        assert not packages & {'tests', 'benchmarks', 'configs', 'launch'}
        assert not packages & {'tensorflow', 'torch'}


@pytest.mark.parametrize('name', NAMES)
def test_the_first_cell_installs_and_the_last_says_what_was_tried(name):
  cells = read(name).cells
  first = next(c.source for c in cells if c.cell_type == 'code')
  assert "if not find_spec('genrec_jax')" in first
  assert "'../..' if is_checkout else 'genrec_jax'" in first
  assert '%pip install' in first
  assert re.search(r'Tried with Python 3\.\d+ and JAX 0\.\d', cells[-1].source)
  named = re.findall(r'`(docs/\w+\.md|\w+\.ipynb)`', cells[-1].source)
  assert named
  for page in named:
    at = FOLDER if page.endswith('.ipynb') else ROOT
    assert (at / page).exists()


@pytest.mark.parametrize(
  'text', ('see /tmp/x', "'/home/ann/run'", 'a\n/srv/data', r'in C:\Users')
)
def test_a_place_on_a_machine_is_noticed(text):
  assert PLACE.search(text)


@pytest.mark.parametrize(
  'text', ('1/10', 'sweep/sweep.csv', 'step 200/200 · x')
)
def test_other_slashes_are_none(text):
  assert not PLACE.search(text)


def test_live_text_moves_as_a_terminal_does():
  shown = []
  stream = notebook.LiveText(shown.append)
  for text in ('a\n', '\r\x1b[Kstep 1', '\r\x1b[Kstep 2', '\n', 'b\nc\n'):
    stream.write(text)
  assert shown[0] == 'a'
  assert shown[1] == 'a\nstep 1'
  assert shown[-1] == 'a\nstep 2\nb\nc'
  stream.write('\x1b[2F\x1b[Jd\n')  # as the table of a sweep is drawn anew
  assert shown[-1] == 'a\nstep 2\nd'
  assert stream.isatty()


def test_live_prints_where_there_is_no_notebook(capsys):
  with notebook.live():
    print('step 1', file=sys.stderr)
  assert capsys.readouterr().err == 'step 1\n'


def test_a_picture_is_whole_and_escapes_names():
  axis = linear_axis(0, 1)
  series = [
    Series(name, [(0, 0.0), (1, 1.0)], 'blue') for name in ('<a&b>', 'c' * 60)
  ]
  picture = notebook.draw_charts([Chart('1 < 2', axis, axis, series)] * 2)
  root = xml.etree.ElementTree.fromstring(picture._repr_svg_())
  texts = [node.text for node in root.iter() if node.text]
  assert texts.count('<a&b>') == 2 and '1 < 2' in texts
  assert repr(picture) == "Picture(titles=('1 < 2', '1 < 2'))"


def test_nothing_to_draw_is_said():
  with pytest.raises(ValueError, match='nothing to draw'):
    notebook.draw_charts([])


def test_a_sweep_of_a_key_that_does_not_exist_is_refused(tmp_path):
  with pytest.raises(ConfigError, match='modle.dim'):
    notebook.run_sweep(
      'quickstart:smoke', sweeps.vary('modle.dim', (8,)), workdir=tmp_path / 's'
    )
  assert not (tmp_path / 's').exists()
