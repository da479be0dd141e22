"""Files of the published layout of Yambda, made up.

Columns and types are those of the folders flat/SIZE of
https://huggingface.co/datasets/yandex/yambda: rows sorted by uid and timestamp,
times in bins of 5 seconds with many ties, and nulls in the columns of listens
beside other events. Nothing here is shared with what reads them.
"""

import math
import pathlib
import random
from collections.abc import Mapping, Sequence

TYPES = ('listen', 'like', 'dislike', 'unlike', 'undislike')
KINDS = {
  'uid': 'uint32', 'timestamp': 'uint32', 'item_id': 'uint32',
  'is_organic': 'uint8', 'event_type': 'string', 'played_ratio_pct': 'uint16',
  'track_length_seconds': 'uint32',
}  # fmt: skip
_OF_ALL = ('uid', 'timestamp', 'item_id', 'is_organic')
_OF_LISTENS = ('played_ratio_pct', 'track_length_seconds')
LAST = 26_000_000  # the end of the data, in seconds
DAY, BIN = 86_400, 5
GENRES, TRACKS = 16, 800
_TASTE, _QUALITY = 1.5, 1.0  # deviations


def generate_rows(users: int, days: int, seed: int = 0) -> list[dict]:
  """Events of users who like genres, and of tracks of which some are better.

  Whether a listen reaches half of the track is drawn with the chance
  sigmoid(taste of the user for the genre + quality of the track - 0.3), which
  the row of a listen holds as 'chance'.

  Args:
    users: how many; all are there from the first day on.
    days: up to the end of the data.
    seed: of everything.
  """
  draw, rows = random.Random(seed), []
  tracks = draw.sample(range(1, 9_390_000), TRACKS)
  quality = [draw.gauss(0, _QUALITY) for _ in tracks]
  first = LAST - days * DAY
  for number in range(users):
    uid = 37 * number + 11
    taste = [draw.gauss(0, _TASTE) for _ in range(GENRES)]
    likely = [math.exp(t / 2) for t in taste]
    for day in range(days):
      # Everybody has a first day; on others some stay away.
      if day and draw.random() > 0.6:
        continue
      time = first + day * DAY + BIN * draw.randrange((DAY - 18_000) // BIN)
      for _ in range(1 + int(draw.expovariate(1 / 8))):
        time += draw.choice((0, 0, *range(BIN, 300, BIN)))
        if time >= first + (day + 1) * DAY:
          break
        (genre,) = draw.choices(range(GENRES), likely)
        track = genre + GENRES * draw.randrange(TRACKS // GENRES)
        chance = 1 / (1 + math.exp(0.3 - taste[genre] - quality[track]))
        rows += _listen(draw, uid, time, tracks[track], chance)
  return rows


def _listen(draw, uid: int, time: int, item: int, chance: float) -> list[dict]:
  """A listen, and what the user says of it, in the same bin or a later one."""
  likes = draw.random() < chance
  played = draw.randrange(50, 101) if likes else draw.randrange(50)
  row = dict(uid=uid, timestamp=time, item_id=item, is_organic=1)
  rows = [
    row
    | dict(
      event_type='listen',
      # Some play a track again.
      played_ratio_pct=played + 100 * (likes and draw.random() < 0.05),
      track_length_seconds=draw.randrange(60, 400),
      chance=chance,
    )
  ]
  if draw.random() < 0.08:
    kinds = ('like', 'undislike') if likes else ('dislike', 'unlike')
    said = kinds[draw.random() < 0.1]
    rows.append(row | {'event_type': said} | dict.fromkeys(_OF_LISTENS))
  return rows


def write(
  folder: pathlib.Path,
  rows: Sequence[Mapping],
  source: str = 'multi_event',
  **kinds,
) -> pathlib.Path:
  """Writes the file of all events, or with 'listens' one for each type.

  Args:
    folder: where to; made if it is not there.
    rows: sorted by uid and timestamp.
    source: 'multi_event' or 'listens'.
    **kinds: pyarrow types of columns, in place of the published ones.
  """
  folder.mkdir(parents=True, exist_ok=True)
  if source == 'multi_event':
    write_file(folder / 'multi_event.parquet', rows, **kinds)
    return folder
  for kind in TYPES:
    names = (*_OF_ALL, *_OF_LISTENS) if kind == 'listen' else _OF_ALL
    some = [row for row in rows if row['event_type'] == kind]
    write_file(folder / f'{kind}s.parquet', some, names)
  return folder


def write_file(
  path: pathlib.Path,
  rows: Sequence[Mapping],
  names: Sequence[str] = tuple(KINDS),
  *,
  row_group_size: int = 11,
  **kinds,
) -> None:
  """Writes some columns of rows; other arguments as of `write`."""
  import pyarrow as pa
  import pyarrow.parquet as pq

  columns = {
    name: pa.array(
      [row[name] for row in rows], kinds.get(name, pa.type_for_alias(kind))
    )
    for name, kind in KINDS.items()
    if name in names
  }
  pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
