"""Whether the artefacts embed as the live model does.

An export that differs from the model that was evaluated makes the figures of
the report, and the index built from it, untrue. So an export is measured
before it is published, and refused below a cosine.
"""

import os

import numpy as np
import tensorflow as tf

from tff_dpemb.export import manifest
from tff_dpemb.export import saved_model
from tff_dpemb.export import signature
from tff_dpemb.export import tflite
from tff_dpemb.models import embedding_model

ExportError = signature.ExportError

_TFLITE_BATCHES = (1, 4)  # besides all images at once


def min_cosine(expected: np.ndarray, actual: np.ndarray) -> float:
  """Returns the smallest cosine between rows of two [N, D] arrays.

  A pair with a zero row has cosine 0, one with a non-finite row -1: both are
  below any gate, because such an embedding is of no use.

  Raises:
    ExportError: The shapes differ or there is no row.
  """
  if expected.shape != actual.shape or expected.ndim != 2 or not len(expected):
    raise ExportError(
      'embeddings must be two arrays [N, D] of one shape with N >= 1, got'
      f' {list(expected.shape)} and {list(actual.shape)}.'
    )
  expected = expected.astype(np.float64)
  actual = actual.astype(np.float64)
  with np.errstate(invalid='ignore', over='ignore'):
    norms = np.linalg.norm(expected, axis=1) * np.linalg.norm(actual, axis=1)
    dots = np.einsum('nd,nd->n', expected, actual)
  finite = np.isfinite(norms) & np.isfinite(dots)
  cosines = np.where(finite, 0.0, -1.0)
  np.divide(dots, norms, out=cosines, where=finite & (norms > 0))
  return float(cosines.min())


def measure(
  backbone: tf.keras.Model,
  images: np.ndarray,
  *,
  saved_model_directory: str | os.PathLike[str],
  tflite_path: str | os.PathLike[str],
) -> manifest.Parity:
  """Returns the parity of both artefacts with `backbone`.

  Args:
    backbone: The live model: float32 [N, H, W, C] in [-1, 1] -> [N, D].
    images: uint8 [N, H, W, C] with N >= 1. Public or held-out images.
    saved_model_directory: Written by `saved_model.write`.
    tflite_path: Written by `tflite.write`.

  Raises:
    ExportError: An artefact does not load or run, or `images` do not fit.
  """
  loaded = saved_model.load(saved_model_directory)
  loaded.signature.check_images(images, name='parity_images')
  if not len(images):
    raise ExportError('parity_images must hold at least 1 image, got 0.')
  expected = embedding_model.embed(backbone, images)
  encoded = [tf.io.encode_png(image).numpy() for image in images]
  lite = tflite.load(tflite_path)
  lite_cosines = [min_cosine(expected, lite.embed(images))]
  for batch_size in _TFLITE_BATCHES:
    actual = lite.embed(images[:batch_size])
    lite_cosines.append(min_cosine(expected[:batch_size], actual))
  return manifest.Parity(
    saved_model=min_cosine(expected, loaded.embed(images)),
    saved_model_bytes=min_cosine(expected, loaded.embed_bytes(encoded)),
    tflite=min(lite_cosines),
    num_images=len(images),
  )
