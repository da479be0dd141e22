"""The graph of imports within one package, for code_shape."""

import ast
import collections
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.code_shape_source import Source

Graph = dict[str, set[str]]
_BLOCKS = (ast.stmt, ast.excepthandler, ast.match_case)


def measure_imports(sources: Sequence[Source]) -> dict:
  """Fan-in, fan-out, circles and depth of the imports of a package."""
  every, at_import = {}, {}
  modules = {source.module for source in sources}
  for source in sources:
    every[source.module] = _targets(source, modules, late=True)
    at_import[source.module] = _targets(source, modules, late=False)
  importers = collections.Counter(m for t in every.values() for m in t)
  fan_in = _largest({m: importers[m] for m in every})
  fan_out = _largest({m: len(targets) for m, targets in every.items()})
  return {
    'fan_in': fan_in[0],
    'fan_in_of': fan_in[1],
    'fan_out': fan_out[0],
    'fan_out_of': fan_out[1],
    'cycles': sum(len(group) > 1 for group in components(every)),
    'cycles_at_import': sum(len(group) > 1 for group in components(at_import)),
    'depth': import_depth(at_import),
  }


def components(graph: Graph) -> list[list[str]]:
  """Strongly connected modules, those that others import first.

  >>> components({'a': {'b'}, 'b': {'c'}, 'c': {'b'}})
  [['b', 'c'], ['a']]
  """
  # Tarjan's algorithm, with a stack of its own: chains of imports are long.
  number, low, path, on_path, groups = {}, {}, [], set(), []
  for root in sorted(graph):
    work = [] if root in number else [(root, iter(sorted(graph[root])))]
    while work:
      node, targets = work[-1]
      if node not in number:
        number[node] = low[node] = len(number)
        path.append(node)
        on_path.add(node)
      for target in targets:
        if target not in number:
          work.append((target, iter(sorted(graph[target]))))
          break
        if target in on_path:
          low[node] = min(low[node], number[target])
      else:
        work.pop()
        if work:
          parent = work[-1][0]
          low[parent] = min(low[parent], low[node])
        if low[node] == number[node]:
          group = path[path.index(node) :]
          del path[-len(group) :]
          on_path.difference_update(group)
          groups.append(sorted(group))
  return groups


def import_depth(graph: Graph) -> int:
  """Modules in the longest chain of imports; a circle counts as one."""
  depths = {}
  for group in components(graph):
    below = {t for node in group for t in graph[node]} - set(group)
    depth = 1 + max((depths[target] for target in below), default=0)
    depths |= dict.fromkeys(group, depth)
  return max(depths.values(), default=0)


def _targets(source: Source, modules: set[str], late: bool) -> set[str]:
  """Modules of the package that a file names in its imports."""
  targets = set()
  for node in _imports(source.tree, late):
    if isinstance(node, ast.Import):
      targets |= {_module(alias.name, modules) for alias in node.names}
    else:
      start = _absolute(source, node)
      targets |= {
        _module(f'{start}.{alias.name}', modules) for alias in node.names
      }
  return targets - {'', source.module}


def _imports(tree: ast.AST, late: bool) -> Iterator[ast.stmt]:
  """Import statements; without `late` those alone that run at once."""
  for node in ast.iter_child_nodes(tree):
    if isinstance(node, ast.Import | ast.ImportFrom):
      yield node
    elif isinstance(node, _BLOCKS) and (late or not _is_late(node)):
      yield from _imports(node, late)


def _is_late(node: ast.AST) -> bool:
  if isinstance(node, ast.If):
    return 'TYPE_CHECKING' in ast.dump(node.test)
  return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _absolute(source: Source, node: ast.ImportFrom) -> str:
  if not node.level:
    return node.module or ''
  words = source.module.split('.')
  up = node.level - source.is_package
  return '.'.join([*words[: len(words) - up], *filter(None, [node.module])])


def _module(name: str, modules: set[str]) -> str:
  """The module of the package that a name is, or is in; '' if none is."""
  package = name.rpartition('.')[0]
  return next((m for m in (name, package) if m in modules), '')


def _largest(counts: Mapping[str, int]) -> tuple[int, str]:
  name = max(sorted(counts), key=counts.__getitem__)
  return counts[name], name
