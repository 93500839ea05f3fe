"""The layers in BUILD are those of the code, and each framework is at home.

No modules import each other in a circle, none is long without a reason, no room
of privacy is crowded, and each module has its test. Reads BUILD by running it
(Starlark is a subset of Python) and the code by its syntax tree: nothing is
imported, so this takes about a second.
"""

import ast
import collections
import dataclasses
import functools
import pathlib
import sys

import pytest

_ROOT = pathlib.Path(__file__).resolve().parents[1]
_PACKAGES = ('tff_dpemb', 'serving', 'protos', 'launch', 'benchmarks')

# What a layer may import: lower layers, and siblings only where shown. The
# diagram, with its reasons, is in docs/architecture.md.
_EVERY_LAYER = (
  'config',
  'images',
  'processes',
  'artifacts',
  'privacy',
  'data',
  'models',
  'evaluation',
  'clustering',
  'training',
  'synthesis',
  'export',
  'pipelines',
  'protos',
  'serving',
  'launch',
)
_BASE = ('config', 'images', 'processes', 'artifacts')
_MAY_IMPORT = {
  'config': ('artifacts',),  # the one canonical JSON, for the page's digest
  'images': (),
  'processes': (),
  'artifacts': ('processes',),
  'privacy': _BASE,
  'data': (*_BASE, 'privacy'),
  'models': _BASE,
  'evaluation': _BASE,
  'clustering': (*_BASE, 'privacy'),
  'training': (*_BASE, 'data', 'models', 'privacy', 'evaluation'),
  'synthesis': (*_BASE, 'clustering', 'models'),
  'export': (*_BASE, 'models', 'privacy'),
  'pipelines': (
    *_BASE,
    'clustering',
    'synthesis',
    'export',
    'data',
    'privacy',
    'evaluation',  # a published set is tested where it is made
  ),
  'protos': (),
  'serving': (*_BASE, 'export', 'privacy', 'protos'),
  'launch': _EVERY_LAYER,
  'benchmarks': _EVERY_LAYER,
}

# One framework, one home. NumPy lives everywhere; benchmarks measure anything.
_HOMES = {
  'apache_beam': ('pipelines',),
  'click': ('launch',),
  'cryptography': ('privacy',),
  'dp_accounting': ('privacy', 'clustering'),
  'faiss': ('serving',),
  'fontTools': ('data',),
  'google': ('serving', 'protos'),  # protobuf and google.rpc messages
  'grpc': ('serving', 'protos'),
  'grpc_health': ('serving',),
  'grpc_tools': ('protos',),
  'jinja2': ('launch',),
  'opendp': ('clustering',),
  'packaging': ('launch',),
  'PIL': ('images', 'data', 'launch'),
  'pyarrow': ('data', 'pipelines'),
  'pydantic': ('config', 'artifacts', 'privacy', 'launch'),
  'rfc8785': ('artifacts',),
  'scipy': ('privacy', 'data'),
  'sqlalchemy': ('privacy',),
  'tensorflow': ('models', 'training', 'export'),
  'tensorflow_federated': ('training',),
  'tensorflow_privacy': ('training',),
  'tqdm': ('launch',),
}
# File and framework, each with its reason.
_AWAY_FROM_HOME = {
  # TFF's workers speak gRPC.
  ('tff_dpemb/training/execution/workers/channels.py', 'grpc'),
  ('tff_dpemb/training/execution/workers/device.py', 'grpc'),
  ('tff_dpemb/training/execution/workers/remote.py', 'grpc'),
}
# Tests of the tree itself: they read all of it, so no layer owns them.
_TESTS_OF_THE_TREE = {
  'tests/architecture_test.py',
  'tests/bazel_test.py',
  'tests/docs_test.py',
  'tests/end_to_end_test.py',
  'tests/requirements_test.py',
}

# Modules of more lines than this need a reason here.
_MOST_LINES = 400
_LONG: dict[str, str] = {}
# The order of the rooms of privacy: each may import those before it.
_ROOMS = (
  'accounting',
  'mechanisms',
  'planning',
  'ledger',
  'certificate',
  'audit',
)
_MOST_MODULES = 12  # of a room, its __init__ included

# Modules whose tests are not in their mirror, and where they are.
_COVERED_BY: dict[str, str] = {
  'launch/commands/ledgers.py': 'tests/launch/commands/ledger_test.py',
  'launch/pages/jinja.py': 'tests/launch/pages/report_test.py',
  'launch/steps/audit/membership.py': 'tests/launch/commands/audit_test.py',
  'launch/steps/audit/synthetic.py': 'tests/launch/commands/audit_test.py',
  'launch/steps/audit/training.py': 'tests/launch/commands/audit_test.py',
  'serving/client.py': 'tests/serving/servicer_test.py',
  'tff_dpemb/clustering/errors.py': 'tests/clustering/plan_test.py',
  'tff_dpemb/export/quiet.py': 'tests/export/saved_model_test.py',
  'tff_dpemb/models/lenet.py': 'tests/models/embedding_model_test.py',
  'tff_dpemb/processes/launcher.py': 'tests/processes/children_test.py',
}


@dataclasses.dataclass(frozen=True)
class Target:
  """A rule of BUILD."""

  kind: str
  name: str
  srcs: tuple[str, ...]
  deps: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Import:
  """An imported module, and where."""

  file: str
  line: int
  module: str  # of `from a.b import c`: a.b.c
  parent: str  # of `from a.b import c`: a.b; else as module

  def __str__(self):
    return f'{self.file}:{self.line}'


def read_build(root: pathlib.Path) -> list[Target]:
  """Returns the targets of root/BUILD."""
  targets = []

  def glob(include, exclude=()):
    def files(patterns):
      found = (path for pattern in patterns for path in root.glob(pattern))
      return {p.relative_to(root).as_posix() for p in found if p.is_file()}

    return sorted(files(include) - files(exclude))

  def rule(kind):
    def record(name, srcs=(), deps=(), **unused_attributes):
      labels = tuple(dep.removeprefix(':') for dep in deps)
      targets.append(Target(kind, name, tuple(srcs), labels))

    return record

  kinds = ('py_library', 'py_binary', 'py_test', 'proto_library', 'test_suite')
  names = {kind: rule(kind) for kind in kinds}
  names |= {'glob': glob, 'load': lambda *_: None, 'len': len}
  names['package'] = lambda **_: None
  source = (root / 'BUILD').read_text()
  exec(compile(source, 'BUILD', 'exec'), {'__builtins__': {}} | names)
  return targets


def libraries(targets: list[Target]) -> dict[str, Target]:
  return {t.name: t for t in targets if t.kind == 'py_library'}


def source_files(root: pathlib.Path) -> set[str]:
  return {
    path.relative_to(root).as_posix()
    for package in _PACKAGES
    for path in (root / package).rglob('*.py')
  }


@functools.cache
def imports_of(root: pathlib.Path, file: str) -> tuple[Import, ...]:
  """Returns each import in a file, those inside functions too."""
  found = []
  for node in ast.walk(ast.parse((root / file).read_text(), file)):
    if isinstance(node, ast.Import):
      for alias in node.names:
        found.append(Import(file, node.lineno, alias.name, alias.name))
    elif isinstance(node, ast.ImportFrom):
      parent = '.' * node.level + (node.module or '')
      for alias in node.names:
        name = f'{parent}.{alias.name}'
        found.append(Import(file, node.lineno, name, parent))
  return tuple(found)


def _file_of(module: str, files: set[str]) -> str | None:
  path = module.replace('.', '/')
  for candidate in (f'{path}.py', f'{path}/__init__.py'):
    if candidate in files:
      return candidate
  return None


def find_faults(root: pathlib.Path) -> list[str]:
  """Returns what is wrong with the tree at root, one line each."""
  targets = read_build(root)
  layers = libraries(targets)
  files = source_files(root)
  faults = []

  owner: dict[str, str] = {}
  for layer in layers.values():
    for file in layer.srcs:
      if file in owner:
        faults.append(f'{file} is in {owner[file]!r} and in {layer.name!r}.')
      owner[file] = layer.name
  for file in sorted(files - set(owner)):
    faults.append(f'{file} is in no py_library of BUILD.')
  for file in sorted(set(owner) - files):
    faults.append(f'BUILD names {file}, which is not there.')

  used: dict[str, dict[str, Import]] = {name: {} for name in layers}
  for file in sorted(files & set(owner)):
    layer = owner[file]
    for item in imports_of(root, file):
      top = item.module.partition('.')[0]
      if not top:
        faults.append(f'{item}: import from the root, not with dots.')
      elif top in _PACKAGES:
        target = _file_of(item.module, files) or _file_of(item.parent, files)
        # A namespace package has no __init__.py and no owner.
        if (
          target is None and not (root / item.parent.replace('.', '/')).is_dir()
        ):
          faults.append(f'{item}: {item.module} is not in the tree.')
        elif target in owner and owner[target] != layer:
          used[layer].setdefault(owner[target], item)
      elif top not in sys.stdlib_module_names:
        faults += _away_from_home(item, top, layer)

  for name, layer in layers.items():
    if name not in _MAY_IMPORT:
      faults.append(f'{name!r} of BUILD is not in the diagram of layers.')
      continue
    for other, item in used[name].items():
      if other not in _MAY_IMPORT[name]:
        faults.append(f'{item}: {name!r} may not import {other!r}.')
      elif other not in layer.deps:
        faults.append(f"{item}: add ':{other}' to deps of {name!r} in BUILD.")
    for other in layer.deps:
      if other not in used[name]:
        faults.append(
          f"{name!r} imports nothing of {other!r}: remove ':{other}' from its"
          ' deps in BUILD.'
        )
  return faults


def _away_from_home(item: Import, framework: str, layer: str) -> list[str]:
  if framework == 'numpy' or layer == 'benchmarks':
    return []
  homes = _HOMES.get(framework)
  if homes is None:
    return [f'{item}: {framework} has no home; give it one in this test.']
  if layer in homes or (item.file, framework) in _AWAY_FROM_HOME:
    return []
  return [f'{item}: {framework} is at home in {", ".join(homes)} only.']


def product_files(files: set[str]) -> list[str]:
  """Returns what people wrote for users: no benchmark, nothing generated."""
  return sorted(
    file
    for file in files
    if not file.endswith(('_pb2.py', '_pb2_grpc.py', '__init__.py'))
    and not file.startswith(('benchmarks/', 'protos/'))
  )


def import_graph(root: pathlib.Path, files: set[str]) -> dict[str, set[str]]:
  """Returns which files each file imports; for type checking counts too."""
  graph: dict[str, set[str]] = {}
  for file in files:
    found = {
      _file_of(item.module, files) or _file_of(item.parent, files)
      for item in imports_of(root, file)
    }
    graph[file] = {target for target in found if target} - {file}
  return graph


def find_circles(graph: dict[str, set[str]]) -> list[str]:
  """Returns a line for each circle of files that import each other."""
  order = [file for file in sorted(graph) if not file.endswith('__init__.py')]
  done: set[str] = set()
  found = []

  def visit(file: str, path: tuple[str, ...]) -> None:
    if file in path:
      circle = path[path.index(file) :]
      found.append(' -> '.join((*circle, file)))
    elif file not in done:
      for target in sorted(graph.get(file, ())):
        visit(target, (*path, file))
      done.add(file)

  for file in order:
    visit(file, ())
  return found


def find_long(
  root: pathlib.Path, files: set[str], reasons: dict[str, str]
) -> list[str]:
  """Returns modules that are long without a reason, and reasons that are old."""
  lines = {
    file: len((root / file).read_text().splitlines())
    for file in files
    if not file.endswith(('_pb2.py', '_pb2_grpc.py'))
  }
  found = [
    f'{file} has {count} lines: split it, or give the reason in this test.'
    for file, count in sorted(lines.items())
    if count > _MOST_LINES and file not in reasons
  ]
  return found + [
    f'{file} has no more than {_MOST_LINES} lines: its reason is stale.'
    for file in sorted(reasons)
    if lines.get(file, 0) <= _MOST_LINES
  ]


def find_room_faults(root: pathlib.Path, files: set[str]) -> list[str]:
  """Returns rooms of privacy that are crowded or import a later one."""
  place = 'tff_dpemb/privacy/'

  def room_of(file: str) -> str:
    return file.removeprefix(place).rpartition('/')[0]

  inside = [file for file in files if file.startswith(place)]
  sizes = collections.Counter(map(room_of, inside))
  found = [
    f'{place}{room} has {count} modules, more than {_MOST_MODULES}.'
    for room, count in sorted(sizes.items())
    if count > _MOST_MODULES
  ]
  found += [
    f'{place}{room} is no known room: add it to this test in its order.'
    for room in sorted(set(sizes) - {*_ROOMS, ''})
  ]
  graph = import_graph(root, files)
  rank = {room: index for index, room in enumerate(('', *_ROOMS))}
  for file in sorted(inside):
    for target in sorted(graph[file]):
      one, other = room_of(file), room_of(target)
      if not target.startswith(place) or one == other:
        continue
      if rank.get(other, 0) > rank.get(one, 0):
        found.append(f'{file} may not import {target} of a later room.')
  return found


def find_untested(
  root: pathlib.Path, files: set[str], covered_by: dict[str, str]
) -> list[str]:
  """Returns modules without a test, and names of tests that cover nothing."""
  graph = import_graph(root, files)
  found = []
  for file in product_files(files):
    mirror = file.removeprefix('tff_dpemb/').removesuffix('.py') + '_test.py'
    mirror = f'tests/{mirror}'
    named = covered_by.get(file)
    if (root / mirror).exists():
      if named is not None:
        found.append(f'{file} has its {mirror}: its line here is stale.')
      continue
    if named is None:
      found.append(f'{file} needs {mirror}, or to be named in this test.')
    elif not (root / named).exists():
      found.append(f'{named}, which covers {file}, is not there.')
    else:
      direct = import_graph_of(root, named, files)
      if file not in direct.union(*(graph[one] for one in direct)):
        found.append(f'{named} has nothing to do with {file}.')
  for file in sorted(set(covered_by) - files):
    found.append(f'{file} is not in the tree: its line here is stale.')
  return found


def import_graph_of(root: pathlib.Path, file: str, files: set[str]) -> set[str]:
  """Returns which files of the product a test imports."""
  found = {
    _file_of(item.module, files) or _file_of(item.parent, files)
    for item in imports_of(root, file)
  }
  return {target for target in found if target}


class TestTree:
  def test_no_circle_of_imports(self):
    circles = find_circles(import_graph(_ROOT, source_files(_ROOT)))
    assert not circles, '\n' + '\n'.join(circles)

  def test_no_module_is_long_without_a_reason(self):
    faults = find_long(_ROOT, source_files(_ROOT), _LONG)
    assert not faults, '\n' + '\n'.join(faults)

  def test_the_rooms_of_privacy(self):
    faults = find_room_faults(_ROOT, source_files(_ROOT))
    assert not faults, '\n' + '\n'.join(faults)

  def test_homes_are_lived_in(self):
    """So that what is left behind goes from the table too."""
    owner = {
      file: library.name
      for library in libraries(read_build(_ROOT)).values()
      for file in library.srcs
    }
    lived_in = {
      (item.module.partition('.')[0], place)
      for file in source_files(_ROOT)
      for item in imports_of(_ROOT, file)
      for place in (file, owner[file])
    }
    homes = {(name, home) for name, all_ in _HOMES.items() for home in all_}
    away = {(name, file) for file, name in _AWAY_FROM_HOME}
    assert not (homes | away) - lived_in

  def test_steps_import_no_command(self):
    graph = import_graph(_ROOT, source_files(_ROOT))
    found = [
      f'{file} imports {target}'
      for file, targets in sorted(graph.items())
      for target in sorted(targets)
      if file.startswith(('launch/steps/', 'launch/run/', 'launch/pages/'))
      and target.startswith('launch/commands/')
    ]
    assert not found

  def test_each_module_has_its_test(self):
    faults = find_untested(_ROOT, source_files(_ROOT), _COVERED_BY)
    assert not faults, '\n' + '\n'.join(faults)

  def test_layers_and_homes(self):
    faults = find_faults(_ROOT)
    assert not faults, '\n' + '\n'.join(faults)

  def test_modules_are_imported_not_names(self):
    files = source_files(_ROOT)
    faults = []
    for file in sorted(files):
      if file.endswith(('_pb2.py', '_pb2_grpc.py')):
        continue
      for item in imports_of(_ROOT, file):
        ours = item.module.partition('.')[0] in _PACKAGES
        path = _ROOT / item.module.replace('.', '/')
        if ours and not _file_of(item.module, files) and not path.is_dir():
          faults.append(f'{item}: import the module {item.parent}.')
    assert not faults, '\n' + '\n'.join(faults)

  def test_each_test_has_a_target_with_the_layers_it_imports(self):
    targets = read_build(_ROOT)
    layers = libraries(targets)
    files = source_files(_ROOT)
    owner = {file: lib.name for lib in layers.values() for file in lib.srcs}
    tests = {t.srcs[0]: t for t in targets if t.kind == 'py_test'}
    faults = []
    for path in sorted((_ROOT / 'tests').rglob('*_test.py')):
      file = path.relative_to(_ROOT).as_posix()
      if file in _TESTS_OF_THE_TREE:
        continue
      if file not in tests:
        faults.append(f'{file} is in no py_test of BUILD.')
        continue
      reached, ahead = set(), list(tests[file].deps)
      while ahead:
        name = ahead.pop()
        if name not in reached:
          reached.add(name)
          ahead += layers[name].deps
      for item in imports_of(_ROOT, file):
        target = _file_of(item.module, files) or _file_of(item.parent, files)
        if target in owner and owner[target] not in reached:
          faults.append(
            f'{item}: {owner[target]!r} is not reached by its deps.'
          )
    assert not faults, '\n' + '\n'.join(faults)

  def test_every_proto_is_in_a_proto_library(self):
    targets = read_build(_ROOT)
    owned = {s for t in targets if t.kind == 'proto_library' for s in t.srcs}
    protos = {
      path.relative_to(_ROOT).as_posix()
      for path in (_ROOT / 'protos').rglob('*.proto')
    }
    assert protos
    assert owned == protos


class TestFindFaults:
  """The checks above find what they are for, on a tree of a few files."""

  @pytest.fixture
  def tree(self, tmp_path):
    def write(build, **files):
      (tmp_path / 'BUILD').write_text(build)
      for name, text in files.items():
        path = tmp_path / (name.replace('__', '/') + '.py')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
      return tmp_path

    return write

  _BUILD = """
py_library(name = "config", srcs = ["tff_dpemb/config.py"])
[py_library(
    name = layer,
    srcs = glob(["tff_dpemb/%s/**/*.py" % layer]),
    deps = [":config"],
) for layer in ["privacy", "data"]]
"""
  _GOOD = {
    'tff_dpemb__config': 'import os\nimport pydantic\n',
    'tff_dpemb__privacy__plan': 'from tff_dpemb import config\n',
    'tff_dpemb__data__store': 'def f():\n  import tff_dpemb.config\n',
  }

  def test_good_tree(self, tree):
    assert find_faults(tree(self._BUILD, **self._GOOD)) == []

  @pytest.mark.parametrize(
    ('file', 'text', 'fault'),
    [
      (
        'tff_dpemb__data__other',
        'from tff_dpemb.privacy import plan\n',
        "tff_dpemb/data/other.py:1: add ':privacy' to deps of 'data' in BUILD.",
      ),
      (
        'tff_dpemb__privacy__other',
        '\nif 1:\n  import tff_dpemb.data.store\n',
        "tff_dpemb/privacy/other.py:3: 'privacy' may not import 'data'.",
      ),
      (
        'tff_dpemb__data__store',
        '',
        "'data' imports nothing of 'config': remove ':config' from its deps in"
        ' BUILD.',
      ),
      (
        'tff_dpemb__models__lenet',
        '',
        'tff_dpemb/models/lenet.py is in no py_library of BUILD.',
      ),
      (
        'tff_dpemb__privacy__other',
        'import tensorflow_federated as tff\n',
        'tff_dpemb/privacy/other.py:1: tensorflow_federated is at home in'
        ' training only.',
      ),
      (
        'tff_dpemb__data__other',
        'from torch import nn\n',
        'tff_dpemb/data/other.py:1: torch has no home; give it one in this'
        ' test.',
      ),
      (
        'tff_dpemb__data__other',
        'from . import store\n',
        'tff_dpemb/data/other.py:1: import from the root, not with dots.',
      ),
      (
        'tff_dpemb__data__other',
        'from tff_dpemb.nothing import x\n',
        'tff_dpemb/data/other.py:1: tff_dpemb.nothing.x is not in the tree.',
      ),
    ],
  )
  def test_fault(self, tree, file, text, fault):
    root = tree(self._BUILD, **(self._GOOD | {file: text}))
    assert find_faults(root) == [fault]

  def test_file_in_two_layers(self, tree):
    build = self._BUILD + 'py_library(name="x", srcs=["tff_dpemb/config.py"])'
    faults = find_faults(tree(build, **self._GOOD))
    assert "tff_dpemb/config.py is in 'config' and in 'x'." in faults
    assert "'x' of BUILD is not in the diagram of layers." in faults


class TestFindStructure:
  """The checks of structure find what they are for, too."""

  @pytest.fixture
  def tree(self, tmp_path):
    def write(**files):
      for name, text in files.items():
        path = tmp_path / (name.replace('__', '/') + '.py')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
      return tmp_path

    return write

  def test_circles_in_functions_and_for_type_checking_count(self, tree):
    root = tree(
      tff_dpemb__data__a='def f():\n  from tff_dpemb.data import b\n',
      tff_dpemb__data__b='from tff_dpemb.data import c\n',
      tff_dpemb__data__c=(
        'from typing import TYPE_CHECKING\n'
        'if TYPE_CHECKING:\n  from tff_dpemb.data import a\n'
      ),
      tff_dpemb__data__d='from tff_dpemb.data import a\n',
    )
    names = [f'tff_dpemb/data/{name}.py' for name in 'abca']
    assert find_circles(import_graph(root, source_files(root))) == [
      ' -> '.join(names)
    ]

  def test_long_modules(self, tree):
    root = tree(serving__a='x = 1\n' * 401, serving__b='x = 1\n' * 400)
    files = source_files(root)
    (fault,) = find_long(root, files, {})
    assert fault.startswith('serving/a.py has 401 lines')
    reason = {'serving/a.py': 'a table'}
    assert find_long(root, files, reason) == []
    (fault,) = find_long(root, files, reason | {'serving/b.py': 'none'})
    assert (
      fault == 'serving/b.py has no more than 400 lines: its reason is stale.'
    )

  def test_rooms(self, tree):
    many = {f'tff_dpemb__privacy__ledger__m{i}': '' for i in range(13)}
    root = tree(
      tff_dpemb__privacy__accounting__a=(
        'from tff_dpemb.privacy.planning import plan\n'
      ),
      tff_dpemb__privacy__planning__plan='from tff_dpemb.privacy import checks\n',
      tff_dpemb__privacy__checks='',
      tff_dpemb__privacy__attic__a='',
      **many,
    )
    assert find_room_faults(root, source_files(root)) == [
      'tff_dpemb/privacy/ledger has 13 modules, more than 12.',
      'tff_dpemb/privacy/attic is no known room: add it to this test in its'
      ' order.',
      'tff_dpemb/privacy/accounting/a.py may not import'
      ' tff_dpemb/privacy/planning/plan.py of a later room.',
    ]

  def test_untested(self, tree):
    root = tree(
      launch__a='',
      launch__b='',
      launch__c='from launch import b\n',
      tests__launch__a_test='',
      tests__launch__c_test='from launch import c\n',
    )
    files = source_files(root)
    (fault,) = find_untested(root, files, {})
    assert fault == (
      'launch/b.py needs tests/launch/b_test.py, or to be named in this test.'
    )
    covered = {'launch/b.py': 'tests/launch/c_test.py'}
    assert find_untested(root, files, covered) == []
    for wrong, what in (
      ({'launch/b.py': 'tests/launch/a_test.py'}, 'nothing to do with'),
      ({'launch/b.py': 'tests/launch/d_test.py'}, 'is not there'),
      (covered | {'launch/a.py': 'tests/launch/c_test.py'}, 'is stale'),
      (covered | {'launch/z.py': 'tests/launch/c_test.py'}, 'is stale'),
    ):
      (fault,) = find_untested(root, files, wrong)
      assert what in fault
