"""Writes the Python code of the protos: `python -m protos.generate`.

The code is committed under `protos/gen`, so that neither users nor Bazel need
a compiler. protoc's root is `protos`, as buf's is; the imports between
generated files are then put under `protos.gen`, which is where they live in a
checkout and in the wheel alike.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent
GENERATED = ROOT / 'gen'

_IMPORT = re.compile(r'^from (dpemb(?:\.\w+)+) import (\w+)', re.MULTILINE)


def generate(output: pathlib.Path) -> list[pathlib.Path]:
  """Writes the code of all protos under `output`; returns the files.

  Raises:
    RuntimeError: protoc refused a proto; it has told why on stderr.
  """
  import grpc_tools
  from grpc_tools import protoc

  output.mkdir(parents=True, exist_ok=True)
  sources = sorted(
    path.relative_to(ROOT).as_posix() for path in ROOT.glob('dpemb/**/*.proto')
  )
  include = pathlib.Path(grpc_tools.__file__).parent / '_proto'
  status = protoc.main(
    [
      'protoc',
      f'-I{ROOT}',
      f'-I{include}',
      f'--python_out={output}',
      f'--pyi_out={output}',
      f'--grpc_python_out={output}',
      *sources,
    ]
  )
  if status:
    raise RuntimeError(f'protoc must accept the protos, got status {status}.')
  written = []
  for source in sources:
    text = (ROOT / source).read_text(encoding='utf-8')
    has_service = re.search(r'^service ', text, re.MULTILINE) is not None
    stem = output / source.removesuffix('.proto')
    for suffix in ('_pb2.py', '_pb2.pyi', '_pb2_grpc.py'):
      path = stem.with_name(stem.name + suffix)
      if suffix == '_pb2_grpc.py' and not has_service:
        path.unlink()  # protoc writes an empty one.
        continue
      code = path.read_text(encoding='utf-8')
      path.write_text(_IMPORT.sub(r'from protos.gen.\1 import \2', code))
      written.append(path)
  for directory in {path.parent for path in written}:
    while directory != output.parent:
      init = directory / '__init__.py'
      if not init.exists():
        init.write_text('')
      if init not in written:
        written.append(init)
      directory = directory.parent
  return sorted(written)


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--output', type=pathlib.Path, default=GENERATED)
  generate(parser.parse_args().output)
  return 0


if __name__ == '__main__':
  sys.exit(main())
