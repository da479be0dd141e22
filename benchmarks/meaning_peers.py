"""What FuxiCTR answered, for `benchmarks.meaning`.

Its answers are kept in results/cpu2/peer_fuxictr.json with its version;
`python -m benchmarks.meaning --peer_python PATH` asks again.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from benchmarks import cli, result
from benchmarks.meaning_cases import Absent

NAME = 'peer_fuxictr'
FILE = result.RESULTS / 'cpu2' / f'{NAME}.json'
QUESTIONS: dict[str, dict] = {}


def ask(name: str, old: list, new: list, **options):
  """A function that gives FuxiCTR's answer to a question of this name.

  Args:
    name: of the case.
    old: values to fit on; lists are texts with '^' between the values.
    new: values to transform.
    options: of FuxiCTR's column.
  """
  QUESTIONS[name] = {'old': old, 'new': new, 'options': options}

  def answer():
    rows = json.loads(FILE.read_text())['rows'] if FILE.exists() else []
    for row in rows:
      if row['case'] == name and row['question'] == QUESTIONS[name]:
        return row['answer']
    raise Absent(f'{FILE.name} lacks this question: ask with --peer_python')

  return answer


def ask_again(python: str) -> None:
  """Asks FuxiCTR everything, in the Python of an environment that has it."""
  program = pathlib.Path(__file__).with_name(f'{NAME}.py')
  with tempfile.TemporaryDirectory() as directory:
    source = pathlib.Path(directory) / 'questions.json'
    target = pathlib.Path(directory) / 'answers.json'
    source.write_text(json.dumps(QUESTIONS))
    command = [python, str(program), str(source), str(target)]
    if subprocess.run(command).returncode:
      cli.fail(f'--peer_python {python} must be a Python with fuxictr')
    answers = json.loads(target.read_text())
  rows = [
    {'case': name, 'question': question, 'answer': answers['answers'][name]}
    for name, question in QUESTIONS.items()
  ]
  note = f'fuxictr {answers["version"]}, of which no code is here'
  result.write(NAME, rows, machine='cpu2', notes=note)
  print(f'{NAME}.json: {len(rows)} answers of fuxictr', file=sys.stderr)
