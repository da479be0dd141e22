"""Shows the examples of docstrings as code; see mkdocs.yml.

A docstring of this project ends with bare `>>>` lines, which Markdown would
take for quotations.
"""

import re

import griffe

_EXAMPLE = re.compile(r'^>>> .*?(?=\n\s*\n|\Z)', re.MULTILINE | re.DOTALL)


class DocstringExamples(griffe.Extension):
  """Puts a fence around each run of `>>>` lines and what they print."""

  def on_object(self, *, obj, **kwargs):
    if obj.docstring and '```' not in obj.docstring.value:
      obj.docstring.value = _EXAMPLE.sub(
        lambda example: f'```pycon\n{example[0]}\n```', obj.docstring.value
      )
