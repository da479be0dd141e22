"""Requests of the test: a history, its candidates, and what moved the scores.

They are not the best ones alone: of some that are drawn by the seed, the one
whose candidates are predicted best, the one that is predicted worst, and evenly
between.
"""

import pathlib
from collections.abc import Iterator, Mapping

import numpy as np

from genrec_jax import formatting
from genrec_jax.data.requests.requests import RequestDataset, Requests
from genrec_jax.features import Features
from genrec_jax.report.pages import load_template
from genrec_jax.serve.left_out import score_without
from genrec_jax.serve.request_scorer import RequestScorer
from genrec_jax.serve.weights import choose_checkpoint

DRAWN = 64  # requests among which those of the page are chosen
ASKED = 32  # candidates by which they are compared, and of which some are shown
_LEAST = 1e-7  # a probability keeps away from 0 and 1 by this
_BEST = 3  # events that are shown at once of those that moved a score


def explain_requests(config, workdir, experiment) -> list[dict]:
  """A few requests of the test split, and what the best state says of them.

  Returns:
    [{'user', 'place' among 'of' requests that were drawn, 'step', 'context':
    feature -> value of what belongs to the request, 'history': [{'event': 1 for
    the latest, 'item', 'features', 'actions', 'age' in seconds}, ...] with the
    latest last, 'events': that the model reads, 'candidates': [{'item',
    'features', 'scores' and 'labels' by label, 'moved': [{'event', 'change'},
    ...] of the first label}, ...]}, ...]; a change is what an event adds to the
    score, the largest is first. The events of 'history' are tried, one by one,
    and no earlier ones.
  """
  dataset = experiment.data.dataset
  split = experiment.data.splits.get('test')  # with what is read of histories
  if split is None or not config.report.users:
    return []
  # Without candidates nothing is asked; without events nothing moves.
  begin = dataset.events.offsets[split.user]
  usable = np.flatnonzero((np.diff(split.offsets) > 0) & (split.end > begin))
  if not len(usable):
    return []
  scorer = RequestScorer.load(
    pathlib.Path(workdir),
    config,
    choose_checkpoint(config),
    experiment.extensions,
    lambda task: experiment.runtime,
  )
  rng = np.random.default_rng(config.seed)
  count = min(max(DRAWN, config.report.users), len(usable))
  drawn = np.sort(rng.choice(usable, count, replace=False))
  asked = [_draw_candidates(rng, split, request) for request in drawn.tolist()]
  requests = _take_requests(split, drawn, asked)
  scores = np.concatenate(list(scorer.score_requests(dataset, requests)))
  order = np.argsort(_measure_losses(scorer, requests, scores), kind='stable')
  shown = min(config.report.users, count)
  places = sorted({round(x) for x in np.linspace(0, count - 1, shown)})
  explained = []
  for place in places:
    at = int(order[place])
    own = scores[requests.offsets[at] : requests.offsets[at + 1], 0]
    # The highest, the lowest, and evenly between.
    ranked = np.argsort(-own, kind='stable')
    most = min(config.report.candidates, len(ranked))
    picked = {round(x) for x in np.linspace(0, len(ranked) - 1, most)}
    chosen = asked[at][ranked[sorted(picked)]]
    about = _explain_request(
      config, scorer, dataset, split, int(drawn[at]), chosen
    )
    explained.append({**about, 'place': place + 1, 'of': count})
  return explained


def _draw_candidates(rng, split: Requests, request: int) -> np.ndarray:
  """Positions of all candidates of a request, or of some that are drawn."""
  first, last = split.offsets[request : request + 2]
  if last - first <= ASKED:
    return np.arange(first, last)
  return first + np.sort(rng.choice(last - first, ASKED, replace=False))


def _take_requests(split: Requests, which: np.ndarray, asked) -> Requests:
  """Some requests, with some of their candidates."""
  at = np.concatenate(asked)
  return Requests(
    user=split.user[which],
    end=split.end[which],
    offsets=np.cumsum([0, *map(len, asked)]),
    items={name: rows[at] for name, rows in split.items.items()},
    labels={name: values[at] for name, values in split.labels.items()},
    time=None if split.time is None else split.time[which],
    context={name: rows[which] for name, rows in split.context.items()},
  )


def _measure_losses(scorer, requests: Requests, scores) -> np.ndarray:
  """`[R]` mean loss of the first label among the candidates of each."""
  label = scorer.spec.labels[0]
  truth, score = requests.labels[label.name], scores[:, 0].astype(np.float64)
  if label.kind == 'binary':
    score = np.clip(score, _LEAST, 1 - _LEAST)
    losses = -np.where(truth > 0, np.log(score), np.log1p(-score))
  else:
    losses = np.square(score - truth)
  sums = np.add.reduceat(losses, requests.offsets[:-1])
  return sums / np.diff(requests.offsets)


def _explain_request(
  config, scorer, dataset: RequestDataset, split, request: int, chosen
) -> dict:
  events, spec = dataset.events, dataset.spec
  user, end = split.user[request], split.end[request]
  begin = max(events.offsets[user], end - config.data.max_history)
  shown = np.arange(max(begin, end - config.report.history), end)
  scores, without = score_without(
    scorer, dataset, split, request, chosen, shown, config.data.max_history
  )
  changes = (scores[None] - without)[:, :, 0]
  numbers = (end - shown).tolist()
  ages = None
  if spec.timed:
    ages = (split.time[request] - events.time[shown]).tolist()
  history = [
    {
      'event': number,
      **named,
      'actions': [n for n, bit in spec.actions if events.action[at] & bit],
      'age': ages and ages[i],
    }
    for i, (number, at, named) in enumerate(
      zip(
        numbers,
        shown,
        _name_items(scorer, spec.items, events.items, shown),
        strict=True,
      )
    )
  ]
  candidates = []
  asked = _name_items(scorer, spec.candidate_features, split.items, chosen)
  for i, named in enumerate(asked):
    order = np.argsort(-np.abs(changes[:, i]), kind='stable')
    candidates.append(
      {
        **named,
        'scores': dict(zip(scorer.labels, scores[i].tolist(), strict=True)),
        'labels': {
          name: float(split.labels[name][chosen[i]]) for name in scorer.labels
        },
        'moved': [
          {'event': numbers[j], 'change': float(changes[j, i])} for j in order
        ],
      }
    )
  return {
    'user': dataset.user_ids[user].item(),
    'step': None if split.step is None else int(split.step[request]),
    'context': {
      name: _say_value(
        np.ma.asarray(scorer.values[name].decode(rows[[request]])).tolist()[0]
      )
      for name, rows in split.context.items()
      if rows[request] or not spec.context_columns[name].pooled
    },
    'events': int(end - begin),
    'history': history,
    'candidates': candidates,
  }


def _name_items(
  scorer, features: Features, columns: Mapping, at: np.ndarray
) -> Iterator[dict]:
  """'item' and further 'features' of events or candidates, as texts."""
  names = [f.name for f in features]
  values = [
    np.ma.asarray(scorer.values[name].decode(columns[name][at])).tolist()
    for name in names
  ]
  for item, *others in zip(*values, strict=True):
    features = dict(zip(names[1:], map(_say_value, others), strict=True))
    yield {'item': _say_value(item), 'features': features}


def _say_value(value: object) -> str:
  return 'unknown' if value in (None, '') else str(value)


def draw_explained(explained: list[dict]) -> str:
  """The section of `explain_requests`."""
  if not explained:
    return ''
  # Of all requests together, so that bars can be compared.
  top = max(
    (
      abs(move['change'])
      for request in explained
      for candidate in request['candidates']
      for move in candidate['moved']
    ),
    default=0.0,
  )
  return load_template('requests.html.j2').render(
    requests=[_arrange(request, top or 1.0) for request in explained],
    top=top,
    drawn=explained[0]['of'],
    label=next(iter(explained[0]['candidates'][0]['scores'])),
    best=_BEST,
  )


def _arrange(request: Mapping, top: float) -> dict:
  """Numbers of a request as texts and widths of bars; `top` is the longest."""
  scores = [next(iter(c['scores'].values())) for c in request['candidates']]
  low, high = min(scores), max(scores)
  if 0 <= low and high <= 1:  # probabilities, unless all numbers are such
    low, high = 0, 1
  items = {event['event']: event['item'] for event in request['history']}
  candidates = []
  for candidate in request['candidates']:
    (label, score), *others = candidate['scores'].items()
    truth = candidate['labels'][label]
    candidates.append(
      {
        **candidate,
        'score': f'{score:.3f}',
        'width': 100 * (score - low) / (high - low or 1),
        'truth': truth,
        'others': [
          f'{name} {value:.3f} ({candidate["labels"][name]:g})'
          for name, value in others
        ],
        'moved': [
          {
            'event': m['event'],
            'item': items[m['event']],
            'text': f'{m["change"]:+.4f}'.replace('-', '−'),
            'left': 50 + min(50 * m['change'] / top, 0),
            'width': abs(50 * m['change'] / top),
            'raises': m['change'] >= 0,
          }
          for m in candidate['moved']
        ],
      }
    )
  history = [
    {
      **event,
      'age': ''
      if event['age'] is None
      else formatting.format_duration(event['age']),
    }
    for event in request['history']
  ]
  return {**request, 'history': history, 'candidates': candidates}
