"""A log of films whose users have tastes, as somebody may bring one along."""

import datetime
import pathlib
import random

GENRES = ('comedy', 'crime', 'drama', 'horror')
FILMS, USERS, DAYS, PAGE = 40, 60, 20, 5
START = datetime.datetime(2024, 3, 1, 18, tzinfo=datetime.UTC)


def write_log(folder: pathlib.Path) -> None:
  """Writes shown.csv and films.csv.

  Every evening, a user is shown five films. One of the user's genre is clicked
  in nine cases of ten, another one in one of ten, so that a film alone tells
  next to nothing.
  """
  draw = random.Random(0)
  genre = {film: GENRES[film % len(GENRES)] for film in range(FILMS)}
  lines = []
  for day in range(DAYS):
    for user in range(USERS):
      taste = GENRES[user * 7 % len(GENRES)]
      moment = START + datetime.timedelta(
        days=day, seconds=draw.randrange(7200)
      )
      for _ in range(PAGE):
        film = draw.randrange(FILMS)
        click = draw.random() < (0.9 if genre[film] == taste else 0.1)
        stars = draw.choice([3, 4, 5]) if click else ''
        seconds = draw.randrange(60, 7000) if click else 0
        device = draw.choice(['tv', 'phone'])
        lines.append(
          f'{user + 1},f{film},{moment:%Y-%m-%dT%H:%M:%SZ},'
          f'{int(click)},{stars},{seconds},{device}'
        )
        moment += datetime.timedelta(seconds=draw.randrange(40))
  header = 'user_id,film,shown_at,click,stars,seconds,device'
  (folder / 'shown.csv').write_text('\n'.join([header, *lines]) + '\n')
  lines = [f'f{film},{name}' for film, name in genre.items()]
  (folder / 'films.csv').write_text('\n'.join(['film,genre', *lines]) + '\n')
