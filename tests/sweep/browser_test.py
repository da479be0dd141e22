"""The page of a sweep in a browser: it sorts, and shows a run everywhere."""

import re
import shutil
import subprocess

import pytest

from genrec_jax.sweep import page, results
from tests.sweep.collect_test import write_run

BROWSER = next(
  filter(None, map(shutil.which, ('chromium', 'chromium-browser', 'chrome'))),
  None,
)
pytestmark = pytest.mark.skipif(not BROWSER, reason='there is no Chromium')
ASK = """<script>
const said = []
onerror = message => said.push('error ' + message)
const order = () => [...document.querySelectorAll('.sortable tbody tr')]
  .map(row => row.dataset.run).join('')
const heads = [...document.querySelectorAll('.sortable th button')]
const press = name => heads.find(b => b.textContent === name).click()
said.push(order())
for (const name of NAMES) { press(name); said.push(order()) }
document.querySelector('path.run[data-run="2"]').dispatchEvent(
  new PointerEvent('pointerover', {bubbles: true}))
said.push(document.querySelectorAll('.shown').length)
said.push(document.querySelectorAll('.shown:not([data-run="2"])').length)
const wide = document.documentElement.scrollWidth - innerWidth > 1
said.push(wide ? 'wide' : 'fits')
document.title = said.join(' ')
</script>"""


def open_page(path, html: str, names: list[str], width: int = 1100) -> str:
  """The title that the page gives itself in a browser."""
  path.write_text(html + ASK.replace('NAMES', str(names)))
  done = subprocess.run(
    [BROWSER, '--headless', '--no-sandbox', '--disable-gpu', '--dump-dom',
     f'--user-data-dir={path.parent}/profile', f'--window-size={width},900',
     path.as_uri()],
    capture_output=True, text=True, timeout=120,
  )  # fmt: skip
  return re.search('<title>(.*?)</title>', done.stdout)[1]


@pytest.fixture
def html(make_sweep):
  sweep, wanted = make_sweep('optimizer.learning_rate=3e-3,1e-3', 'seed=0,1')
  for variant, values in zip(
    wanted, ((0.2, 0.1), (0.3, 0.4), (0.5, 0.25)), strict=False
  ):
    write_run(sweep, variant, values)
  return page.render_sweep(results.read_results(sweep))


def test_a_page_sorts_and_shows(html, tmp_path):
  names = ['learning_rate', 'NDCG@10, valid', 'NDCG@10, valid']
  said = open_page(tmp_path / 'page.html', html, names).split(' ')
  assert said[0] == '0123'
  assert said[1] == '2301'  # by numbers, not by letters
  assert said[2:4] == ['0123', '2103']  # a run without a value stays last
  # Its row, and its line or dot in each picture.
  assert int(said[4]) >= 5 and said[5] == '0'
  assert said[6] == 'fits'


def test_a_page_fits_a_phone(html, tmp_path):
  assert open_page(tmp_path / 'page.html', html, [], 500).endswith('fits')
