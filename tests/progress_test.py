"""Tests of the progress line, with a clock that tests set."""

import doctest
import errno
import io
import os

import pytest

from genrec_jax import formatting, progress


class Clock:
  def __init__(self):
    self.now = 1000.0

  def __call__(self):
    return self.now


class Terminal(io.StringIO):
  encoding = 'utf-8'

  def isatty(self):
    return True

  def screen(self):
    """What a terminal shows: a line is erased before it is rewritten."""
    lines = self.getvalue().split('\n')
    return [line.rsplit('\r\x1b[K', 1)[-1] for line in lines]


@pytest.fixture
def clock():
  return Clock()


@pytest.fixture
def wide(monkeypatch):
  size = os.terminal_size((200, 24))
  monkeypatch.setattr('shutil.get_terminal_size', lambda **_: size)


def _steps(p, clock, steps, seconds=0.5, **values):
  for step in steps:
    clock.now += seconds
    p.update(step, **values)


def test_an_error_fetches_no_value(clock):
  class NeverComputed:
    def __float__(self):
      raise AssertionError('the device is asked')

  with pytest.raises(KeyError), progress.Progress(9, clock=clock) as p:
    p.update(1, loss=1.0)
    p.update(2, loss=NeverComputed())
    raise KeyError


def test_plain_lines_every_so_often(clock):
  stream = io.StringIO()
  with progress.Progress(100, stream=stream, clock=clock) as p:
    clock.now += 7  # compilation
    _steps(p, clock, range(1, 101), loss=1.25, tokens=1000)
  assert stream.getvalue().splitlines() == [
    'step 1/100 · 7.5s so far · batch loss 1.25',
    'step 21/100 · 40s left · batch loss 1.25 · 2.00 steps/s · 2.00k tokens/s',
    'step 41/100 · 30s left · batch loss 1.25 · 2.00 steps/s · 2.00k tokens/s',
    'step 61/100 · 20s left · batch loss 1.25 · 2.00 steps/s · 2.00k tokens/s',
    'step 81/100 · 9.5s left · batch loss 1.25 · 2.00 steps/s · 2.00k tokens/s',
    'step 100/100 · batch loss 1.25 · 2.00 steps/s · 2.00k tokens/s',
  ]


def test_a_terminal_sees_one_line_rewritten(clock, wide):
  stream = Terminal()
  with progress.Progress(100, 'example', stream, clock=clock) as p:
    _steps(p, clock, range(1, 51), loss=2, lr=1e-3)
    assert stream.screen() == [
      '━━━━━━━━━━━━──────────── example 50/100 · 25s left · batch loss 2'
      ' · 2.00 examples/s · lr 0.001'
    ]
  assert len(stream.screen()) == 2 and stream.screen()[1] == ''


def test_a_log_file_has_a_value_of_the_past_once(clock, wide):
  for stream, counts in ((io.StringIO(), (1, 1)), (Terminal(), (5, 4))):
    with progress.Progress(100, stream=stream, clock=clock) as p:
      first, second = {'auc': 0.25}, {'auc': 0.75}
      for step, once in enumerate([{}, *[first] * 5, *[second] * 3, {}]):
        clock.now += 10
        p.update(step, once=once, lr=0.5)
        if step == 8:
          found = stream.getvalue()
          assert found.count('lr 0.5 · auc 0.25') == counts[0]
          assert 1 <= found.count('lr 0.5 · auc 0.75') <= counts[1]
    assert stream.getvalue()[len(found) :].count('auc') == 0
    assert stream.getvalue().count('lr 0.5') >= 10


@pytest.mark.parametrize('terminal', [True, False])
def test_a_line_is_seen_at_once(clock, wide, terminal):
  """Streams that keep what is written until they are flushed."""

  class Keeping(io.StringIO):
    seen = ''

    def isatty(self):
      return terminal

    def flush(self):
      self.seen = self.getvalue()

  stream = Keeping()
  p = progress.Progress(10, stream=stream, clock=clock)
  p.update(1)
  assert 'step 1/10' in stream.seen


@pytest.mark.parametrize('terminal', [True, False])
def test_a_stream_that_cannot_be_written_stops_nothing(clock, wide, terminal):
  class Full(io.StringIO):
    def isatty(self):
      return terminal

    def flush(self):
      raise OSError(errno.ENOSPC, 'No space left on device')

  with progress.Progress(10, stream=Full(), clock=clock) as p:
    _steps(p, clock, range(1, 10), seconds=20)
    with p.pause('saving'):
      pass
  assert p.rate


def test_a_terminal_is_not_flooded(clock, wide):
  stream = Terminal()
  p = progress.Progress(10_000, stream=stream, clock=clock)
  _steps(p, clock, range(1, 1001), seconds=0.001)
  assert stream.getvalue().count('\r') <= 11


def test_a_narrow_terminal_gets_no_second_line(clock, monkeypatch):
  size = os.terminal_size((40, 24))
  monkeypatch.setattr('shutil.get_terminal_size', lambda **_: size)
  stream = Terminal()
  p = progress.Progress(100, stream=stream, clock=clock)
  _steps(p, clock, range(1, 10), loss=1.0)
  assert len(stream.screen()) == 1 and len(stream.screen()[0]) == 39


def test_the_bar_gives_way_to_the_numbers(clock, monkeypatch):
  lines = {}
  for columns in (80, 61, 56):
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr('shutil.get_terminal_size', lambda s=size, **_: s)
    stream = Terminal()
    p = progress.Progress(100, stream=stream, clock=clock)
    _steps(p, clock, range(1, 26), loss=1.0)
    lines[columns] = stream.screen()[0]
  text = 'step 25/100 · 38s left · batch loss 1 · 2.00 steps/s'
  assert lines[80] == '━' * 6 + '─' * 18 + ' ' + text
  assert lines[61] == text and lines[56] == text
  assert len(lines[61]) == 52  # eight more and a space would not fit


def test_pauses_count_for_the_remaining_time_but_not_for_the_rate(clock):
  p = progress.Progress(40, stream=io.StringIO(), clock=clock)
  p.update(0)
  _steps(p, clock, range(1, 21))
  assert p.rate == pytest.approx(2) and p.estimate_remaining_s(
    40
  ) == pytest.approx(10)
  with p.pause('evaluating'):
    clock.now += 10
  p.update(20)
  assert p.rate == pytest.approx(2) and p.estimate_remaining_s(
    40
  ) == pytest.approx(20)
  with pytest.raises(KeyError), p.pause('saving'):
    clock.now += 5
    raise KeyError
  p.update(20)
  assert p.rate == pytest.approx(2) and p.estimate_remaining_s(
    40
  ) == pytest.approx(25)


def test_a_compilation_is_neither_in_the_rate_nor_in_the_remaining_time(clock):
  p = progress.Progress(100, stream=io.StringIO(), clock=clock)
  for number, begin in enumerate((1, 11)):
    with p.pause(f'compiling program {number + 1} of 2', recurs=False):
      clock.now += 4000
    _steps(p, clock, range(begin, begin + 10))
  assert p.rate == pytest.approx(2)
  assert p.estimate_remaining_s(100) == pytest.approx(40)


def test_what_the_first_evaluation_compiles_is_not_expected_again(clock):
  p = progress.Progress(110, stream=io.StringIO(), clock=clock)
  p.update(0)
  _steps(p, clock, range(1, 11))
  with p.pause('evaluating'):
    clock.now += 65
  p.take_once(60)
  assert p.estimate_remaining_s(110) == pytest.approx(100)


def test_a_step_that_was_held_up_does_not_count_for_the_remaining_time(clock):
  p = progress.Progress(1000, stream=io.StringIO(), clock=clock)
  _steps(p, clock, range(1, 101), seconds=0.1)
  _steps(p, clock, [101], seconds=19)
  _steps(p, clock, range(102, 111), seconds=0.1)
  assert p.rate == pytest.approx(109 / 29.8)
  assert p.estimate_remaining_s(1000) == pytest.approx(89)


def test_a_step_that_is_slow_every_so_often_counts(clock):
  p = progress.Progress(1000, stream=io.StringIO(), clock=clock)
  for step in range(1, 101):
    _steps(p, clock, [step], seconds=0.1 if step % 4 else 0.7)
  assert p.estimate_remaining_s(1000) == pytest.approx(900 / 4, rel=0.1)


@pytest.mark.parametrize('terminal', [True, False])
def test_the_first_compilation_is_told_at_once(clock, wide, terminal):
  stream = Terminal() if terminal else io.StringIO()
  p = progress.Progress(10, stream=stream, clock=clock)
  with p.pause('compiling program 1 of 2', recurs=False):
    shown = stream.getvalue().splitlines()[-1]
    assert shown.endswith('compiling program 1 of 2')
  assert not terminal or stream.screen() == ['']


def test_the_label_of_a_pause_is_shown_while_it_lasts(clock, wide):
  stream = Terminal()
  p = progress.Progress(10, stream=stream, clock=clock)
  _steps(p, clock, range(1, 4))
  shown = stream.screen()[0]
  for label in ('evaluating', 'saving'):
    with p.pause(label):
      clock.now += 1
      assert stream.screen() == [f'{shown} · {label}']
    assert stream.screen() == [shown]


def test_the_rate_is_that_of_late_and_starts_behind_a_restart(clock):
  p = progress.Progress(None, stream=io.StringIO(), clock=clock)
  _steps(p, clock, range(5001, 5101), seconds=10)
  assert p.rate == pytest.approx(0.1) and p.estimate_remaining_s(None) is None
  _steps(p, clock, range(5101, 5201), seconds=1)
  assert p.rate == pytest.approx(1)
  _steps(p, clock, range(5201, 10_201), seconds=0.01)
  assert p.rate == pytest.approx(100)


def test_slow_steps_are_told_in_seconds_a_step(clock):
  stream = io.StringIO()
  with progress.Progress(100, stream=stream, clock=clock) as p:
    _steps(p, clock, [1, 2], seconds=20)
  assert stream.getvalue().splitlines() == [
    'step 1/100 · 20s so far',
    'step 2/100 · 32m 40s left · 20.0 s/step',
  ]


def test_the_loss_is_fetched_only_when_it_is_drawn(clock):
  fetched = []

  class Loss:
    def __float__(self):
      fetched.append(clock.now)
      return 1.0

  p = progress.Progress(100, stream=io.StringIO(), clock=clock)
  _steps(p, clock, range(1, 42), loss=Loss())
  assert len(fetched) == 3


def test_ascii_streams_get_ascii(clock, wide):
  raw = io.BytesIO()
  stream = io.TextIOWrapper(raw, encoding='ascii')
  stream.isatty = lambda: True
  with progress.Progress(10, stream=stream, clock=clock) as p:
    _steps(p, clock, range(1, 11), loss=float('nan'))
  line = b'========= step 10/10, batch loss nan, 2.00 steps/s'
  assert line in raw.getvalue()


def test_nothing_done_nothing_said(clock):
  stream = io.StringIO()
  with progress.Progress(10, stream=stream, clock=clock) as p:
    with p.pause('evaluating'):
      pass
    assert p.rate is None and p.tokens_per_s is None
    assert p.estimate_remaining_s(None) is None
  assert stream.getvalue() == ''


@pytest.mark.parametrize(
  'seconds, text',
  [
    (0, '0.0s'),
    (9.96, '10s'),
    (59.6, '1m 00s'),
    (3599, '59m 59s'),
    (7810, '2h 10m'),
    (273_600, '3d 4h'),
  ],
)
def test_duration(seconds, text):
  assert formatting.format_duration(seconds) == text


@pytest.mark.parametrize(
  'number, text',
  [
    (0.254, '0.25'),
    (12.34, '12.3'),
    (999.4, '999'),
    (999.6, '1.00k'),
    (14_530, '14.5k'),
    (2_310_000, '2.31M'),
    (5e15, '5000T'),
  ],
)
def test_compact(number, text):
  assert formatting.format_compact(number) == text


def test_examples_in_docstrings():
  assert doctest.testmod(formatting).failed == 0
