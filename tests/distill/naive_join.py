"""What a join of labels must give, from all events at once, by dictionaries."""

import collections
import dataclasses


@dataclasses.dataclass(frozen=True)
class Unit:
  """What is read at once.

  Attributes:
    shown: stream -> (id, time, feature) of each impression.
    events: stream -> (id, time, values) of each label event; None where the
      event says nothing of a label.
  """

  shown: dict[str, list[tuple]]
  events: dict[str, list[tuple]]


def join(units, streams, labels, window_s, attribution_s, remembered):
  """Windows and counts.

  Returns:
    Unit -> list of (window, rows, stream -> its rows), of which a row is (id,
    time, feature, values), with len(units) for what comes at the end; and the
    counts by name.
  """
  # Below which window everything was given out when a unit had been read.
  closed, clocks = [], {}
  for unit in units:
    for stream in streams:
      for _, time, _ in unit.shown[stream]:
        clocks[stream] = max(time, clocks.get(stream, time))
    passed = None
    if len(clocks) == len(streams):
      passed = (min(clocks.values()) - attribution_s) // window_s
    closed.append(passed)

  def is_closed(window, unit):
    """Whether a window was closed before a unit was read."""
    return unit > 0 and closed[unit - 1] is not None and (
      window < closed[unit - 1]
    )  # fmt: skip

  counts = collections.Counter()
  examples, owners, read_in = {}, collections.defaultdict(set), {}
  for k, unit in enumerate(units):
    for stream in streams:
      for id_, time, feature in unit.shown[stream]:
        counts['impressions'] += 1
        if is_closed(time // window_s, k):
          counts['late_impressions'] += 1
        elif stream in owners[id_]:
          counts['repeated_impressions'] += 1
        else:
          counts['shared_impressions'] += id_ in examples
          examples[id_] = (time, feature)
          owners[id_].add(stream)
          read_in.setdefault(id_, k)

  events = collections.defaultdict(list)  # (id, label) -> (fate, value)
  for k, unit in enumerate(units):
    for stream in streams:
      for id_, time, values in unit.events[stream]:
        for label, value in enumerate(values):
          if value is None:
            continue
          counts['labels'] += 1
          is_early = id_ in examples and time < examples[id_][0]
          window = examples[id_][0] // window_s if id_ in examples else None
          if window is None or read_in[id_] > k:
            counts['unknown'] += 1
          elif is_closed(window + remembered, k):
            counts['unknown'] += 1
          else:
            counts['early'] += is_early
            if time > examples[id_][0] + attribution_s:
              fate = 'behind_attribution'
            elif is_closed(window, k):
              fate = 'after_emission'
            else:
              fate = 'joined'
            events[id_, label].append((fate, value))

  values = {}
  for place, all_of_it in events.items():
    fates = [fate for fate, _ in all_of_it]
    for fate in ('joined', 'after_emission', 'behind_attribution'):
      if fate in fates:
        counts[fate] += 1
        break
    counts['duplicates'] += len(all_of_it) - 1
    joined = [value for fate, value in all_of_it if fate == 'joined']
    if joined:
      values[place] = max(joined)

  by_window = collections.defaultdict(list)
  for id_, (time, _) in examples.items():
    by_window[time // window_s].append((time, id_))
  out = collections.defaultdict(list)
  for window in sorted(by_window):
    at = len(units)
    for k, passed in enumerate(closed):
      if passed is not None and window < passed:
        at = k
        break
    rows, own = [], {stream: [] for stream in streams}
    for row, (time, id_) in enumerate(sorted(by_window[window])):
      found = tuple(values.get((id_, x), 0.0) for x in range(len(labels)))
      rows.append((id_, time, examples[id_][1], found))
      for stream in owners[id_]:
        own[stream].append(row)
      counts['examples'] += 1
      counts['unlabelled'] += not any(
        (id_, x) in values for x in range(len(labels))
      )
    out[at].append((window, rows, own))
  return out, counts
