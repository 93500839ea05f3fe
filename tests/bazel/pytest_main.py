"""Runs one test file with pytest, as the program of a Bazel py_test.

Bazel lays out the declared sources only. The same interpreter may have the
tree installed in place ("editable"); that copy is put out of reach, or an
undeclared import would be found there.
"""

import os
import pathlib
import sys

import pytest

_PACKAGES = ('tff_dpemb', 'serving', 'protos', 'launch', 'benchmarks')


def _is_editable(finder: object) -> bool:
  return '__editable__' in getattr(finder, '__module__', '') or (
    '__editable__' in getattr(finder, '__name__', '')
  )


def main(arguments: list[str]) -> int:
  tree = pathlib.Path.cwd()
  sys.meta_path[:] = [f for f in sys.meta_path if not _is_editable(f)]
  sys.path_hooks[:] = [h for h in sys.path_hooks if not _is_editable(h)]
  sys.path[:] = [
    entry
    for entry in sys.path
    if '__editable__' not in entry
    and not any((pathlib.Path(entry) / name).is_dir() for name in _PACKAGES)
  ]
  sys.path.insert(0, str(tree))
  xml = os.environ.get('XML_OUTPUT_FILE')
  options = [f'--junitxml={xml}'] if xml else []
  return pytest.main(
    [
      f'--rootdir={tree}',
      '--config-file=/dev/null',
      '--import-mode=importlib',
      '-p',
      'no:cacheprovider',
      *options,
      *arguments,
    ]
  )


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
