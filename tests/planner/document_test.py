"""The page about the planner shows what its code prints."""

import pathlib
import re

import pytest

from genrec_jax.embedding import plan as plan_lib
from genrec_jax.planner import Constraint

PAGE = pathlib.Path(__file__).parents[2] / 'docs' / 'planner.md'


def blocks(language: str) -> list[str]:
  text = PAGE.read_text()
  return re.findall(rf'^```{language}\n(.*?)^```$', text, re.M | re.S)


def test_the_report_on_the_page_is_the_one_its_code_prints(capsys):
  exec(compile(blocks('python')[0], str(PAGE), 'exec'), {})
  printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
  assert printed == blocks('text')[0].splitlines()


def test_the_constraints_on_the_page_can_be_made():
  names = {}
  exec(compile(blocks('python')[1], str(PAGE), 'exec'), names)
  assert isinstance(names['constraints']['items'], Constraint)


def test_the_scheme_on_the_page_is_planned_with():
  exec(compile(blocks('python')[2], str(PAGE), 'exec'), {})


def test_the_plan_on_the_page_is_a_plan():
  plan = plan_lib.from_json(blocks('json')[0])
  assert plan.tables['users'].pieces == 2


@pytest.mark.parametrize('name', ['planner_grid', 'planner_traces'])
def test_the_page_has_its_tables(name):
  assert f'<!-- table:{name} -->' in PAGE.read_text()
