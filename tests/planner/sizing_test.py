"""The sizing calculator, by hand."""

import dataclasses

import pytest

from genrec_jax.embedding.exchange import Exchange
from genrec_jax.planner import DensePart, Feature, Load, hardware, make_plan
from genrec_jax.planner.sizing import size_growth, size_machine

LOADS = [
  Load('a', 1_000_000, 128, features=(Feature(20.0),)),
  Load('b', 1_000, 64, features=(Feature(5.0, pooled=False),)),
]
DENSE = DensePart(parameters=10_000_000, flops=1e9)
TWO = hardware.find_topology(
  'h100', hosts=2, devices=4, intra=400e9, inter=50e9, reserve=0.0
)


def test_every_bound():
  found = size_machine(LOADS, TWO, 8 * 1000, DENSE)
  read = 20 * 512 + 5 * 256
  assert found.memory == pytest.approx(3 * 1000 * read / 3.35e12)
  # Copies of b are shorter than 5,000 of its rows: their gradients travel.
  exchanged = 2 * (1000 * 512 + 1000 * 256) * 7 / 8
  reduced = 2 * 40_000_000 * 7 / 8
  assert found.injection == pytest.approx((exchanged + reduced) / 50e9)
  crossing = 4 * 1000 * 512 + 2 * 1000 * 256 + 2 * 40_000_000
  assert found.bisection == pytest.approx(crossing / (4 * 50e9))
  assert found.compute == pytest.approx(3 * 1e9 * 1000 / (989e12 * 0.4))
  rows = 1_000_000 * 516 + 1_000 * 260
  assert found.capacity == pytest.approx(rows / (8 * 80e9))
  assert found.binds == 'compute'


def test_what_binds():
  assert (
    size_machine(LOADS, TWO, 8000, DensePart()).binds == 'injection bandwidth'
  )
  small = hardware.replace_numbers(TWO, memory=50_000_000)
  assert size_machine(LOADS, small, 8000, DENSE).binds == 'capacity'
  fast = hardware.replace_numbers(TWO, inter=1e15)
  assert (
    size_machine(LOADS, fast, 8000, DensePart()).binds == 'memory bandwidth'
  )
  alone = hardware.replace_numbers(TWO, hosts=1, devices=1)
  found = size_machine(LOADS, alone, 1000, DENSE)
  assert found.injection == found.bisection == 0


def test_a_torus_is_bound_by_its_bisection_as_it_grows():
  slices = size_growth(
    LOADS[:1], hardware.find_topology('v5e', hosts=16), 64_000, DensePart()
  )
  assert [s.devices for s in slices] == [64, 128, 256, 512]
  assert slices[-1].binds == 'bisection'
  # Four times the chips, a cut of twice the links.
  assert slices[2].bisection == pytest.approx(2 * slices[0].bisection)
  assert slices[0].memory == pytest.approx(slices[-1].memory)


def test_narrow_formats_lower_the_bounds_of_what_travels():
  narrow = Exchange(forward='mx6', backward='mx9')
  found = size_machine(LOADS, TWO, 8 * 1000, DENSE, narrow)
  # 128 numbers and their gradients; copies of b are shorter than 5,000 of its
  # rows even so.
  exchanged = 1000 * (96 + 144) + 2 * 1000 * 256
  reduced = 2 * 40_000_000
  assert found.injection == pytest.approx(
    (exchanged + reduced) * 7 / 8 / 50e9, rel=1e-6
  )
  crossing = 8 / 4 * 1000 * 240 + 2 * 1000 * 256 + reduced
  assert found.bisection == pytest.approx(crossing / (4 * 50e9))
  wide = size_machine(LOADS, TWO, 8 * 1000, DENSE)
  assert found.memory == wide.memory


def test_the_report_tells_the_formats_that_travel():
  topology = hardware.find_topology('h100', hosts=1, devices=4)
  apart = dataclasses.replace(LOADS[0], codec=('mx6', 'mx9'))
  plan, report = make_plan([apart, LOADS[1]], topology, batch=4096)
  told = [name for name in plan.tables if plan.tables[name].spread]
  assert 'a' in told
  assert 'travel: ' in str(report) and 'mx6/mx9 (1' in str(report)
  assert 'do not have their encoding' in str(report)
  assert sum(report.to_dict()['formats'].values()) == len(told)
