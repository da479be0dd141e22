"""Shows the code in docstrings as code; see mkdocs.yml.

A docstring of this project ends with bare `>>>` lines, which Markdown would
take for quotations, and indents diagrams and commands by two spaces, which it
would join to one line.
"""

import re
import textwrap

import griffe

_EXAMPLE = re.compile(r'^>>> .*?(?=\n\s*\n|\Z)', re.MULTILINE | re.DOTALL)
# Sections such as `Args:` are indented, too, but follow their title at once.
_INDENTED = re.compile(r'(?<=\n\n)(?: {2,}\S.*(?:\n+(?= ))?)+')


class DocstringExamples(griffe.Extension):
  """Puts fences around examples and indented blocks of docstrings."""

  def on_object(self, *, obj, **kwargs):
    if obj.docstring and '```' not in obj.docstring.value:
      text = _INDENTED.sub(
        lambda block: f'```text\n{textwrap.dedent(block[0]).rstrip()}\n```\n',
        obj.docstring.value,
      )
      obj.docstring.value = _EXAMPLE.sub(
        lambda example: f'```pycon\n{example[0]}\n```', text
      )
