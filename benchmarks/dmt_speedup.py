"""Steps of DLRM by towers against flat ones: a model, not a measurement.

  python -m benchmarks.dmt_speedup

Nothing here was run on the machines that it speaks of. benchmarks/dmt_model.py
adds up times from `dmt_assumptions.json`, all of which are printed. `step` rows
have a machine, a model and a number of devices each; `split` rows the factors
of which a speed-up is the product; `share` rows what a speed-up needs if only
the exposed share of a flat step is known; `guess` rows what one assumption
does; `check` rows compare the model with published times and byte counts.
`python -m benchmarks.pictures` draws docs/dmt_speedup.svg (dmt_picture.py).
"""

import itertools
from collections.abc import Iterator

from benchmarks import cli, dmt_model
from benchmarks.dmt_model import ASSUMED, COMPRESSIONS, MODELS, choose
from genrec_jax.planner import exchange_time, hardware, traffic

MACHINES = ('v100', 'a100_80gb', 'h100', 'v5p')
DEVICES = (16, 32, 64, 128, 256, 512)
WANTED = 1.5  # the speed-up that is asked for
PAPER = ASSUMED['published']['speedup']
PAPER_SHARE = ASSUMED['published']['exposed_share']['value']
LATE = ('far_latency_us', 'near_latency_us')
# What a band of the picture and `_low_x`, `_high_x` are over.
BAND = [
  dict.fromkeys(LATE, latency) | {'exposed': exposed}
  for latency, exposed in itertools.product(('low', 'high'), repeat=2)
]
COLUMNS = (
  'case', 'flat_ms', 'exposed_share', 'speedup_x', *(
    f'speedup_{c}_x' for c in COMPRESSIONS
  ), 'peers_x', 'messages_x', 'near_x', 'compression_x', 'rest_x', 'ratio_x',
  'least_share', 'at_paper_share_x', 'rest_for_wanted_x', 'rest_for_paper_x',
  'low_x', 'high_x', 'ours_us', 'theirs_us', 'off',
)  # fmt: skip
NOTES = (
  'A model, not a measurement: nothing ran on these machines. Assumptions: '
  'benchmarks/dmt_assumptions.json, committed before anything was computed.',
  'speedup_C_x: of towers with compression C over a flat step; C = 1 is SPTT '
  'alone. _low_x and _high_x: least and most over low and high latencies and '
  'exposed shares of the exchange.',
  'ratio_x: time of the exchange by towers over that of the flat one. '
  'least_share: exposed share of a flat step from which a speed-up of '
  f'{WANTED} is reached if the rest stays as it is; none where it is never. '
  'rest_for_*: how much cheaper the rest must become at the share of the '
  'paper. Of split rows both are with the rest as cheap as it was counted.',
  'in_host_rows_x: speed-up where tables lie by rows over their hosts.',
)


def main(argv: list[str] | None = None) -> None:
  parser = cli.parser('dmt_speedup', __doc__)
  args = parser.parse_args(argv)
  print_assumptions()
  machines = MACHINES[2:3] if args.smoke else MACHINES
  counts = DEVICES[2:3] if args.smoke else DEVICES
  rows = [
    step_row(*case) for case in itertools.product(machines, MODELS, counts)
  ]
  rows += [
    split_row(*case)
    for case in itertools.product(
      machines, counts[2:3] + counts[5:] or counts, MODELS, COMPRESSIONS
    )
  ]
  for name, devices in itertools.product(machines, counts):
    if devices >= 64:
      rows += [share_row(name, devices, c) for c in COMPRESSIONS]
  rows += list_guesses('h100', 64, 'small', 4)
  rows += list_checks()
  cli.finish(args, 'dmt_speedup', rows, COLUMNS, NOTES, merge=False)


def print_assumptions() -> None:
  """Each assumption with its values, its tag and its sentence."""
  print(ASSUMED['what'])
  for group in ('model', 'towers', 'step', 'exchange', 'published'):
    for name, entry in ASSUMED[group].items():
      value = entry.get('value', [entry.get(k) for k in dmt_model.LEVELS])
      print(f'  {group}.{name} = {value} [{entry["tag"]}] {entry["why"]}')


def speed_up(name, devices, model, compression, guess, rows_in_host=False):
  """Time of a flat step over that of one by towers."""
  flat, towers = (
    dmt_model.time_step(name, devices, model, c, guess, rows_in_host)
    for c in (0, compression)
  )
  return flat.total / towers.total


def step_row(name: str, model: str, devices: int) -> dict:
  """A flat step, and the speed-up of towers by their compression."""
  args, guess = (name, devices, model), choose()
  flat = dmt_model.time_step(*args, 0, guess)
  shares = [
    dmt_model.time_step(*args, 0, choose(**levels)).exposed_share
    for levels in BAND
  ]
  row = {
    'case': f'step/{name}/{model}/{devices}',
    'kind': 'step',
    'of': name,
    'model': model,
    'devices': devices,
    'flat_ms': 1e3 * flat.total,
    'flat_exchange_ms': 1e3 * flat.exchange.total,
    'rest_ms': 1e3 * flat.rest,
    'exposed_share': flat.exposed_share,
    'exposed_share_low': min(shares),
    'exposed_share_high': max(shares),
  }
  for c in COMPRESSIONS:
    band = [speed_up(*args, c, choose(**levels)) for levels in BAND]
    row |= {
      f'speedup_{c}_x': speed_up(*args, c, guess),
      f'speedup_{c}_low_x': min(band),
      f'speedup_{c}_high_x': max(band),
      f'in_host_rows_{c}_x': speed_up(*args, c, guess, True),
    }
  return row


def split_row(name: str, devices: int, model: str, compression: int) -> dict:
  """What a speed-up is made of; the product of the factors is the speed-up."""
  guess = choose()
  machine = dmt_model.make_machine(name, devices, guess)
  ways = 0, compression
  flat, towers = (dmt_model.time_vectors(c, machine).total for c in ways)
  rest = [dmt_model.time_rest(model, c, machine, guess) for c in ways]
  ratio, cheaper = towers / flat, rest[0] / rest[1]
  return {
    'case': f'split/{name}/{model}/{devices}/{compression}',
    'kind': 'split',
    'of': name,
    'model': model,
    'devices': devices,
    'compression': compression,
    'speedup_x': speed_up(name, devices, model, compression, guess),
    **dmt_model.split_gain(name, devices, model, compression, guess),
    'rest_cheaper_x': cheaper,
    'least_share': find_least_share(ratio, cheaper),
    'at_paper_share_x': 1 / ((1 - PAPER_SHARE) / cheaper + PAPER_SHARE * ratio),
  }


def share_row(name: str, devices: int, compression: int) -> dict:
  """What follows from the exposed share of a flat step, whatever the model."""
  found = {}
  for level in dmt_model.LEVELS:
    machine = dmt_model.make_machine(
      name, devices, choose(**dict.fromkeys(LATE, level))
    )
    times = [dmt_model.time_vectors(c, machine).total for c in (0, compression)]
    found[level] = times[1] / times[0]
  ratio = found['middle']
  left = PAPER_SHARE * ratio
  row = {
    'case': f'share/{name}/{devices}/{compression}',
    'kind': 'share',
    'of': name,
    'devices': devices,
    'compression': compression,
    'ratio_x': ratio,
    'ratio_low_x': min(found.values()),
    'ratio_high_x': max(found.values()),
    'at_paper_share_x': 1 / (1 - PAPER_SHARE + left),
    'rest_for_wanted_x': (1 - PAPER_SHARE) / (1 / WANTED - left),
    'rest_for_paper_x': (1 - PAPER_SHARE) / (1 / PAPER['value'] - left),
  }
  for key, value in (
    ('least_share', ratio),
    ('least_share_low', row['ratio_low_x']),
    ('least_share_high', row['ratio_high_x']),
  ):
    row[key] = find_least_share(value)
  return row


def find_least_share(
  ratio: float, cheaper: float = 1.0, wanted: float = WANTED
) -> float | None:
  """Exposed share of a flat step from which a speed-up is reached.

  Args:
    ratio: time of the exchange by towers over that of the flat one.
    cheaper: time of the rest of a flat step over that of one by towers.
    wanted: the speed-up.

  Returns:
    The share; None if even a step of nothing but exchange is not enough.

  >>> find_least_share(0.5), find_least_share(0.9), find_least_share(0.5, 2.0)
  (0.6666666666666667, None, 0.0)
  """
  if ratio > 1 / wanted:
    return None
  if cheaper >= wanted:
    return 0.0
  return (1 / cheaper - 1 / wanted) / (1 / cheaper - ratio)


def list_guesses(
  name: str, devices: int, model: str, compression: int
) -> Iterator[dict]:
  """What each guess does by itself."""
  for guess in dmt_model.GUESSES:
    low, high = (
      speed_up(name, devices, model, compression, choose(**{guess: level}))
      for level in ('low', 'high')
    )
    yield {
      'case': f'guess/{guess}',
      'kind': 'guess',
      'of': name,
      'model': model,
      'devices': devices,
      'compression': compression,
      'low_x': low,
      'high_x': high,
    }


def list_checks() -> Iterator[dict]:
  """The exchange model against published times, and against byte counts."""
  for name in ('all_to_all', 'all_to_all_at_fault'):
    theirs = ASSUMED['published'][name]['value']
    times = {}
    for level in dmt_model.LEVELS:
      guess = choose(**dict.fromkeys(LATE, level))
      machine = hardware.replace_numbers(
        dmt_model.make_machine('h100', theirs['hosts'] * 8, guess),
        intra=theirs['intra'] * guess['near_rate_reached'],
        inter=theirs['inter'] * guess['far_rate_reached'],
      )
      n = machine.group_size
      sent = traffic.Transfer(
        'forward', 'rows', traffic.ALL_TO_ALL, traffic.GROUP,
        theirs['bytes'] * (n - 1) / n,
      )  # fmt: skip
      time = exchange_time.time_transfer(sent, machine)
      times[level] = 1e6 * time.total
    yield {
      'case': f'check/{name}',
      'kind': 'check',
      'of': theirs['machine'],
      'ours_us': times['middle'],
      'ours_low_us': times['low'],
      'ours_high_us': times['high'],
      'theirs_us': theirs['out_of_place_us'],
      'theirs_in_place_us': theirs.get('in_place_us'),
      'off': times['middle'] / theirs['out_of_place_us'] - 1,
    }
  machine = hardware.find_topology('h100', hosts=8)
  sizes = dmt_model.WIRE, dmt_model.FEATURES, dmt_model.COLUMNS
  flat, _ = exchange_time.list_flat(machine, *sizes, dmt_model.EXAMPLES)
  near, far, *_ = exchange_time.list_towers(
    machine, *sizes, dmt_model.EXAMPLES, 2
  )
  yield {
    'case': 'check/bytes',
    'kind': 'check',
    'of': 'h100',
    'flat_bytes': flat.bytes,
    'flat_far_bytes': traffic.split_by_link(flat, machine)[1],
    'towers_near_bytes': near.bytes,
    'towers_far_bytes': far.bytes,
  }


if __name__ == '__main__':
  main()
