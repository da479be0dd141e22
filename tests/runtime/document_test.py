"""The loop on the page about runtimes: one device and eight print alike."""

import pathlib
import re

import jax
import pytest

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'reference' / 'runtime.md'


@pytest.mark.parametrize('devices', [1, 8])
def test_the_loop_on_the_page_prints_what_the_page_says(capsys, devices):
  code, printed = re.findall(
    r'^```(?:python|text)\n(.*?)^```$', PAGE.read_text(), re.M | re.S
  )
  one = 'config.parallel.devices = 1 '
  assert one in code
  code = code.replace(one, one.replace('1', str(devices)))
  with jax.numpy_dtype_promotion('standard'):  # for optax
    exec(compile(code, str(PAGE), 'exec'), {})
  assert capsys.readouterr().out == printed
