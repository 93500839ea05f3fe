"""Look-ups over a port are held against exact search."""

import contextlib
import types

import numpy as np
import pytest

from launch.run import stamps
from launch.steps import serve_check
from serving import index as index_lib


def _embed(images):
  flat = images.reshape(len(images), -1)[:, :8].astype(np.float32) + 1
  return flat / np.linalg.norm(flat, axis=1, keepdims=True)


class _Client:
  """Answers as a server of the index would; `wrong` answers every other way."""

  def __init__(self, path, *, wrong):
    self._index, self._wrong = index_lib.load(path), wrong

  def __enter__(self):
    return self

  def __exit__(self, *unused):
    return None

  def embed(self, images):
    return _embed(images)

  def search(self, *, images=None, embeddings=None, k):
    queries = _embed(images) if images is not None else embeddings
    found = self._index.neighbours(queries, k)
    if not self._wrong:
      return found
    return [
      row[::-1] if number % 2 else row for number, row in enumerate(found)
    ]


@pytest.mark.parametrize(('wrong', 'agreement'), [(False, 1.0), (True, 0.5)])
def test_agreement_is_counted(trained, monkeypatch, wrong, agreement):
  monkeypatch.setattr(
    serve_check.registry,
    'open_export',
    lambda path: types.SimpleNamespace(embed=_embed, digest='d' * 64),
  )
  monkeypatch.setattr(
    serve_check, '_server', lambda run: contextlib.nullcontext('host:1')
  )
  monkeypatch.setattr(
    serve_check.client_lib,
    'Client',
    lambda address: _Client(trained.paths.index / 'test', wrong=wrong),
  )
  serve_check.serve_check(trained)
  found = stamps.read_any(trained.paths.serving)
  assert found['lookups'] == found['gallery'] == 60
  assert found['agreement_with_exact'] == agreement


def test_a_server_that_does_not_start_is_named(trained):
  with pytest.raises(
    stamps.StageError, match='must start, got exit code 2: dpemb: error:'
  ):
    with serve_check._server(trained):
      pass
  assert not (trained.paths.serving / 'port').exists()
