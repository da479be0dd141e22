"""A pytest plugin of `benchmarks.mutation`: which test runs which line.

Loaded by `-p benchmarks.mutation_plugin`, it reads a JSON request from the file
named by $MUTATION_REQUEST and writes its answer beside it. A request either has

- `trace`, files: every test runs, and the answer holds the lines of these files
  that each ran and the seconds that it took; or
- `select`, names of tests: these run, in that order, up to the first failure,
  and the answer names it.

What a fixture of a module or a session runs counts for every test that uses
it, though it runs once. JAX forgets its programs before each traced test, or
functions that were compiled for one test would not be seen in the next.
"""

import collections
import json
import os
import pathlib
import sys
import threading

import pytest

REQUEST = 'MUTATION_REQUEST'


def pytest_configure(config):
  path = pathlib.Path(os.environ[REQUEST])
  request = json.loads(path.read_text())
  answer = path.with_suffix('.answer')
  plugin = (
    Tracer(request['trace'], answer)
    if 'trace' in request
    else Selection(request['select'], answer)
  )
  config.pluginmanager.register(plugin, 'mutation')


class Selection:
  """Runs the chosen tests, and says which one failed."""

  def __init__(self, names: list[str], answer: pathlib.Path):
    self._place = {name: place for place, name in enumerate(names)}
    self._answer, self._passed = answer, 0

  @pytest.hookimpl(trylast=True)
  def pytest_collection_modifyitems(self, config, items):
    chosen = [item for item in items if item.nodeid in self._place]
    others = [item for item in items if item.nodeid not in self._place]
    config.hook.pytest_deselected(items=others)
    items[:] = sorted(chosen, key=lambda item: self._place[item.nodeid])
    self._write(None)

  def pytest_runtest_logreport(self, report):
    if report.failed:
      self._write(report.nodeid)
    elif report.when == 'call':
      self._passed += 1
      self._write(None)

  def _write(self, failed: str | None) -> None:
    answer = {'passed': self._passed, 'failed': failed}
    self._answer.write_text(json.dumps(answer))


class Tracer:
  """Notes the lines that each test runs."""

  def __init__(self, files: list[str], answer: pathlib.Path):
    self._files = {os.path.abspath(f): f for f in files}
    self._answer = answer
    self._lines = collections.defaultdict(set)  # who -> {(file, line)}
    self._now = self._lines['']  # nobody: while modules are imported
    self._uses = {}  # test -> the wide fixtures that it uses
    self._seconds = collections.Counter()
    self._left_out = set()  # failed or skipped

  def pytest_sessionstart(self):
    threading.settrace(self._trace)
    sys.settrace(self._trace)

  def pytest_sessionfinish(self):
    sys.settrace(None)
    threading.settrace(None)
    tests = {}
    for test, fixtures in self._uses.items():
      if test not in self._left_out and test in self._seconds:
        lines = self._lines[test].union(*(self._lines[f] for f in fixtures))
        tests[test] = {
          'seconds': self._seconds[test],
          'lines': sorted(lines),
        }
    self._answer.write_text(
      json.dumps({'tests': tests, 'left_out': sorted(self._left_out)})
    )

  @pytest.hookimpl(wrapper=True)
  def pytest_runtest_protocol(self, item):
    if 'jax' in sys.modules:
      sys.modules['jax'].clear_caches()
    information = getattr(item, '_fixtureinfo', None)
    fixtures = information.name2fixturedefs if information else {}
    self._uses[item.nodeid] = [
      _name(definition)
      for definitions in fixtures.values()
      for definition in definitions
      if definition.scope != 'function'
    ]
    self._now = self._lines[item.nodeid]
    sys.settrace(self._trace)  # a test may have replaced it
    try:
      return (yield)
    finally:
      self._now = self._lines['']

  @pytest.hookimpl(wrapper=True)
  def pytest_fixture_setup(self, fixturedef):
    if fixturedef.scope == 'function':
      return (yield)
    before, self._now = self._now, self._lines[_name(fixturedef)]
    try:
      return (yield)
    finally:
      self._now = before

  def pytest_runtest_logreport(self, report):
    self._seconds[report.nodeid] += report.duration
    if report.failed or report.skipped:
      self._left_out.add(report.nodeid)

  def _trace(self, frame, event, argument):
    """Called with every call of a function; returns who hears of its lines."""
    del event, argument
    file = self._files.get(frame.f_code.co_filename)
    if file is None:
      return None
    self._now.add((file, frame.f_lineno))

    def line(frame, event, argument):
      del argument
      if event == 'line':
        self._now.add((file, frame.f_lineno))
      return line

    return line


def _name(definition) -> str:
  return f'{definition.baseid}::{definition.argname}'
