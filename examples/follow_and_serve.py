"""Publish tables while training, follow them, and serve them: three processes.

    python examples/follow_and_serve.py

The training publishes its item table every 50 steps. The follower keeps a copy
of it up to date, and a web server maps the copy and answers which items are
most similar to another one. The example ends by itself after about 30 seconds
on one CPU core.

Prints the server's answers while the training goes on. The last one must be of
the last step, and name items of the same shelf as the one asked for.
"""

import http.server
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import numpy as np

STEPS, ASKED = 400, 34  # items 30 .. 39 stand on one shelf
SETTINGS = {
  'optimizer.rows.name': 'row_adagrad',  # such tables are published by rows
  'checkpoint.publish.every': 50,
  'model': {'dim': 16, 'ffn_dim': 16, 'blocks': 1, 'max_len': 8},
  'train': {'batch_size': 64, 'eval_every': 200, 'log_every': 400},
}


def train(workdir: str) -> None:
  """512 customers buy the ten items of one shelf each, in any order."""
  import genrec_jax

  rng = np.random.default_rng(0)
  shelf = rng.integers(0, 6, (512, 1))
  places = rng.permuted(np.tile(range(10), (512, 1)), axis=1)
  item = (10 * shelf + places).reshape(-1)
  events = {'user': np.repeat(range(512), 10), 'item': item}
  more = dict(time=None, settings=SETTINGS, steps=STEPS, progress=False)
  genrec_jax.fit(events, 'sasrec', workdir=workdir, **more)


def serve(workdir: str, directory: str) -> None:
  """Answers GET /ITEM from the followed copy, without JAX or a model."""
  from genrec_jax.checkpoint.serving_copy import ServingCopy

  class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      try:
        copy = ServingCopy(directory)
      except FileNotFoundError:
        return self.send_error(503, 'nothing is published yet')
      ids = np.load(f'{workdir}/items/ids.npy')  # of rows 1, 2, ...
      rows, step = copy.read('items', np.arange(len(ids)) + 1, wait_s=0.5)
      rows /= np.linalg.norm(rows, axis=1, keepdims=True)
      (asked,) = rows[ids == int(self.path[1:])]
      best = ids[np.argsort(-rows @ asked)[1:4]]
      self.send_response(200)
      self.end_headers()
      body = {'step': step, 'similar': best.tolist()}
      self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_):
      """Prints nothing."""

  server = http.server.HTTPServer(('127.0.0.1', 0), Answer)
  print(server.server_port, flush=True)
  server.serve_forever()


def ask(port: int) -> dict:
  try:
    with urllib.request.urlopen(f'http://127.0.0.1:{port}/{ASKED}') as answer:
      return json.load(answer)
  except urllib.error.HTTPError:  # nothing is published yet
    return {'step': None}


def main() -> None:
  with tempfile.TemporaryDirectory() as folder:
    run, copy = f'{folder}/run', f'{folder}/copy'
    follow = ['-m', 'genrec_jax.checkpoint.follow', run, copy, '--poll', '0.2']
    roles = ([__file__, 'serve', run, copy], [__file__, 'train', run], follow)
    processes = [
      subprocess.Popen([sys.executable, *role], stdout=subprocess.PIPE)
      for role in roles
    ]
    try:
      port, step = int(processes[0].stdout.readline()), None
      while step != STEPS:
        assert not any(p.poll() for p in processes), 'a process has failed'
        time.sleep(0.2)
        answer = ask(port)
        if answer['step'] not in (None, step):
          step = answer['step']
          print(f'step {step}: items like {ASKED} are {answer["similar"]}')
    finally:
      for process in processes:
        process.terminate()
        process.wait()
  assert all(item // 10 == ASKED // 10 for item in answer['similar'])


if __name__ == '__main__':
  roles = {'train': train, 'serve': serve}
  roles[sys.argv[1]](*sys.argv[2:]) if sys.argv[1:] else main()
