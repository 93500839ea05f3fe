"""The layers in BUILD are those of the code, and each framework is at home.

Reads BUILD by running it (Starlark is a subset of Python) and the code by its
syntax tree: nothing is imported, so this takes under a second.
"""

import ast
import dataclasses
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
  'config': (),
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
  'grpc_reflection': ('serving',),
  'grpc_status': ('serving',),
  'grpc_tools': ('protos',),
  'jinja2': ('launch',),
  'matplotlib': ('launch',),
  'opendp': ('clustering',),
  'packaging': ('launch',),
  'PIL': ('images', 'data', 'launch'),
  'pyarrow': ('data', 'pipelines'),
  'pydantic': ('config', 'artifacts', 'launch'),
  'rfc8785': ('artifacts',),
  'scipy': ('privacy', 'clustering', 'data'),
  'sqlalchemy': ('privacy',),
  'tensorflow': ('models', 'training', 'synthesis', 'export'),
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
  # Composes the events of its own passes, repeated ones included.
  ('tff_dpemb/pipelines/release.py', 'dp_accounting'),
}
# Tests of the tree itself: they read all of it, so no layer owns them.
_TESTS_OF_THE_TREE = {
  'tests/architecture_test.py',
  'tests/bazel_test.py',
  'tests/end_to_end_test.py',
  'tests/requirements_test.py',
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


def imports_of(root: pathlib.Path, file: str) -> list[Import]:
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
  return found


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


class TestTree:
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
