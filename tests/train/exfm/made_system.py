"""The files of a small system that has come to its end, with made-up numbers.

Nothing is trained: metrics are drawn, so that a plain computation of what the
page has must read the same files.
"""

import json
import pathlib

import numpy as np

from genrec_jax.data.parquet import pa, pq
from genrec_jax.data.ranking import drift
from genrec_jax.distill.part_manifest import Part, PartDirectory
from genrec_jax.distill.score_parts import Scores
from genrec_jax.distill.teacher_store import TeacherStore
from genrec_jax.processes import notes
from genrec_jax.serve.annotator import KIND
from genrec_jax.train.exfm import __main__ as command
from genrec_jax.train.exfm import commands, settings

BATCH, SCALE, WINDOWS = 16, 2.0, 8


def make(root: pathlib.Path, *words: str) -> commands.Layout:
  """The layout of a system in a directory, its files being there."""
  words = [
    '--students', 'feed=dlrm:0,1', 'video=dcn:1', 'search=deepfm:2',
    f'--windows={WINDOWS}', '--rows=150', '--values=10', '--fields=3',
    '--pairs=1', '--rate=0.2', *words,
  ]  # fmt: skip
  args = command.make_parser().parse_args([str(root), *words])
  layout = commands.Layout(root, command.read_settings(args))
  root.mkdir(exist_ok=True)
  settings.claim_directory(root, layout.settings, {})
  rng = np.random.default_rng(7)
  parts = _write_parts(layout, rng)
  _write_run(layout.teacher, parts['teacher'], rng, 'wukong')
  for student, method in layout.settings.runs():
    workdir = layout.student(student, method)
    _write_run(workdir, parts[student.name], rng, student.model)
  (root / 'logs').mkdir()
  for name in commands.list_processes(layout):
    note = notes.Note(notes.DONE, tries=1, core_s=rng.uniform(1, 9), wall_s=12)
    notes.write_note(layout.note(name), note)
  return layout


def _write_parts(layout: commands.Layout, rng) -> dict[str, list[int]]:
  """Stream -> rows of each part."""
  log = layout.settings.stream
  stream, parts, rows = drift.DriftStream(log), {}, {}
  annotated = PartDirectory(layout.annotated, KIND, {})
  store = TeacherStore.open(
    layout.annotated / 'scores', teacher='t', labels=['label'], fingerprint='f'
  )
  for k in range(log.windows):
    window = stream.window(k)
    label = (window.label * (rng.random(len(window)) < 0.9)).astype(np.float32)
    columns = {'example_id': window.example_id, 'label': label}
    score = np.clip(window.probability * rng.uniform(0.8, 1.2), 0, 1)
    if k:
      step = 10 * k
      scores = Scores(
        window.example_id, window.time, score[:, None], step, k - 1
      )
      store.append(f'window-{k:010d}', scores)
    owned = {s.name: s.segments for s in layout.settings.students}
    for name, segments in {'teacher': range(3), **owned}.items():
      keep = np.isin(window.segment, segments)
      table = pa.table({key: x[keep] for key, x in columns.items()})
      sink = pa.BufferOutputStream()
      pq.write_table(table, sink)
      notes_of = {'rows': len(table), 'scored': k > 0}
      content = sink.getvalue().to_pybytes()
      parts[f'{name}/window-{k:010d}.parquet'] = Part(content, notes_of)
      rows.setdefault(name, []).append(len(table))
  facts = dict(
    examples=sum(rows['teacher']), rows=sum(map(sum, rows.values())),
    scored=sum(rows['teacher'][1:]), labels_lost=0.1, join='',
  )  # fmt: skip
  facts['rows'] -= facts['examples']
  annotated.commit(parts, facts)
  return rows


def _write_run(workdir: pathlib.Path, counts: list[int], rng, model) -> None:
  """A config, and the lines of a run that has lines between windows, too."""
  workdir.mkdir(parents=True)
  config = dict(
    train={'batch_size': BATCH}, distill={'label_scale': SCALE},
    model={'name': model},
  )  # fmt: skip
  (workdir / 'config.json').write_text(json.dumps(config))
  step, lines = 0, []
  for k, count in enumerate(counts):
    step += -(-count // BATCH)
    lines.append({'step': step - 1, 'train/loss': 0.5})
    drawn = {
      name: rng.uniform(0.3, 0.6)
      for name in ('train/logloss', 'train/ne', 'train/auc')
    }
    drawn |= {'step': step, 'train/calibration': rng.uniform(0.5, 2)}
    drawn |= {'train/part': k + 1}
    drawn |= {'train/teacher/annotated': float(k > 0)}
    drawn |= {
      f'train/teacher/{name}': rng.uniform(0.1, 0.4) * (k > 0)
      for name in ('learned', 'adapted', 'score')
    }
    lines.append(drawn)
  text = ''.join(json.dumps(line) + '\n' for line in lines)
  (workdir / 'metrics.jsonl').write_text(text)
