"""Hooks of the documentation site, see mkdocs.yml.

The pages under docs/ link to each other, to README.md and to source files by
relative paths, as a repository host follows them. A site has only what lies
under docs/. So README.md becomes the front page, and every file that a page
links to becomes a page under source/; links are rewritten on the way.
"""

import os.path
import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).parent.parent
LANGUAGES = {'.py': 'python', '.sh': 'sh', '.toml': 'toml', '.json': 'json'}

# Markdown files outside docs/ that are pages of the site -> their place in it.
PAGES = {
  'README.md': 'index.md',
  'CHANGELOG.md': 'source/CHANGELOG.md',
  'WORKSPACE_NOTES.md': 'source/WORKSPACE_NOTES.md',
  'benchmarks/README.md': 'source/benchmarks/README.md',
}
_LINK = re.compile(r'\]\((?![a-z]+:|#|<)([^)\s#]+)(#[^)\s]*)?\)')
_TABLE_ROW = re.compile(r'^\|.*$', re.MULTILINE)
_CODE = re.compile(r'`[^`]+`')
_FENCE = re.compile(r'^( *)(```|~~~).*?^\1\2', re.MULTILINE | re.DOTALL)


def on_files(files, config):
  """Adds README.md, the other pages of PAGES, and every file they link to."""
  texts = {
    f'docs/{file.src_uri}': file.content_string
    for file in files.documentation_pages()
  }
  for path, page in PAGES.items():
    texts[path] = (ROOT / path).read_text()
    content = _rewrite(texts[path], path)
    files.append(File.generated(config, page, content=content))
  sources = {
    target
    for path, text in texts.items()
    for target in _targets(text, path)
    if not target.startswith('docs/') and target not in PAGES
  }
  for target in sorted(sources):
    page = _place(target)
    files.append(File.generated(config, page, content=_show(target)))
  return files


def on_page_markdown(markdown, page, config, files):
  """Points the links of a page under docs/ at their places in the site."""
  if page.file.generated_by:
    return markdown
  return _rewrite(markdown, f'docs/{page.file.src_uri}')


def _targets(text: str, path: str) -> list[str]:
  """The files that a page links to, by their paths in the repository."""
  text = _FENCE.sub('', text)
  return [_resolve(match[1], path) for match in _LINK.finditer(text)]


def _resolve(link: str, path: str) -> str:
  return posixpath.normpath(posixpath.join(posixpath.dirname(path), link))


def _place(target: str) -> str:
  """Where a file of the repository lies in the site, relative to its root."""
  if target in PAGES:
    return PAGES[target]
  if target.startswith('docs/'):
    return target.removeprefix('docs/')
  # A directory, or a file that is shown as a page of its own.
  return f'source/{target}.md'


def _rewrite(text: str, path: str) -> str:
  """The text of the file at `path` with the links of its page in the site."""
  here = posixpath.dirname(_place(path))
  # Hosts need a pipe in the code of a table escaped, Python-Markdown does not.
  text = _TABLE_ROW.sub(
    lambda row: _CODE.sub(lambda c: c[0].replace(r'\|', '|'), row[0]), text
  )

  def point(match):
    place = _place(_resolve(match[1], path))
    return f']({os.path.relpath(place, here or ".")}{match[2] or ""})'

  # Code between fences stays as it is; so the text is taken apart at them.
  parts, start = [], 0
  for fence in _FENCE.finditer(text):
    parts += [_LINK.sub(point, text[start : fence.start()]), fence[0]]
    start = fence.end()
  return ''.join([*parts, _LINK.sub(point, text[start:])])


def _show(target: str) -> str:
  """A page with a file of the repository, or with the names in a directory."""
  path = ROOT / target
  # Source is for reading; a search for words should find documents.
  head = f'---\nsearch:\n  exclude: true\n---\n\n# {target}\n\n'
  if path.is_dir():
    files = sorted(p for p in path.rglob('*.py') if p.stat().st_size)
    return head + '\n\n'.join(
      f'## {file.relative_to(path)}\n\n{_code(file)}' for file in files
    )
  return head + _code(path)


def _code(path: pathlib.Path) -> str:
  language = LANGUAGES.get(path.suffix, 'text')
  return f'````{language}\n{path.read_text()}````\n'
