"""Reads report pages in tests."""

import html.parser
import re


class _Checker(html.parser.HTMLParser):
  """Collects the text; fails when tags do not nest or a request is made."""

  VOID = {'meta', 'br', 'line', 'path', 'rect', 'circle'}

  def __init__(self):
    super().__init__()
    self.open, self.tags, self.text = [], [], ''

  def handle_starttag(self, tag, attrs):
    assert not {'src', 'href', 'onclick', 'onerror'} & {k for k, _ in attrs}
    assert tag not in ('script', 'link', 'img', 'iframe', 'object')
    self.tags.append((tag, dict(attrs)))
    if tag not in self.VOID:
      self.open.append(tag)

  def handle_startendtag(self, tag, attrs):
    assert tag in self.VOID
    self.handle_starttag(tag, attrs)

  def handle_endtag(self, tag):
    assert self.open.pop() == tag

  def handle_data(self, data):
    if self.open and self.open[-1] != 'style':
      self.text += ' '.join(f'.{data}.'.split())[1:-1]


def parse(text):
  """Reads a page or a part of one, and checks its markup and numbers."""
  checker = _Checker()
  checker.feed(text)
  checker.close()
  assert not checker.open
  assert 'url(' not in text and '@import' not in text and '//' not in text
  for attrs in (a for _, a in checker.tags):
    assert not re.search(r'nan|inf', ' '.join(attrs.get(k) or '' for k in (
      'd', 'x', 'y', 'x1', 'y1', 'cx', 'cy', 'width', 'style')))  # fmt: skip
  return checker
