"""Tests of tff_dpemb.export.manifest."""

import json

import pytest

from tff_dpemb.artifacts import documents
from tff_dpemb.export import manifest

# As written on the day of this form: it must go on to be read.
_KEPT = """{
 "schema": "dpemb.export/2",
 "files": {
  "model.tflite": "a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0",
  "saved_model/saved_model.pb": "b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0"
 },
 "name": "faces",
 "version": 3,
 "created": "2026-11-30T12:00:00+00:00",
 "model_digest": "1297a1fb67b73e44be01a04f7edf71b1ecfd2686fc7b757a108d9b2809b6f6ff",
 "signature": {
  "image_shape": [
   28,
   28,
   1
  ],
  "embedding_dim": 128,
  "saved_model": {
   "embed_uint8": {
    "input": {
     "name": "images",
     "dtype": "uint8",
     "shape": [
      null,
      28,
      28,
      1
     ],
     "content": "pixels, 0 to 255"
    },
    "output": {
     "name": "embedding",
     "dtype": "float32",
     "shape": [
      null,
      128
     ],
     "content": "of unit L2 norm"
    }
   },
   "embed_bytes": {
    "input": {
     "name": "encoded",
     "dtype": "string",
     "shape": [
      null
     ],
     "content": "PNG or JPEG files"
    },
    "output": {
     "name": "embedding",
     "dtype": "float32",
     "shape": [
      null,
      128
     ],
     "content": "of unit L2 norm"
    }
   },
   "serving_default": {
    "input": {
     "name": "images",
     "dtype": "uint8",
     "shape": [
      null,
      28,
      28,
      1
     ],
     "content": "pixels, 0 to 255"
    },
    "output": {
     "name": "embedding",
     "dtype": "float32",
     "shape": [
      null,
      128
     ],
     "content": "of unit L2 norm"
    }
   }
  },
  "tflite": {
   "embed_uint8": {
    "input": {
     "name": "images",
     "dtype": "uint8",
     "shape": [
      null,
      28,
      28,
      1
     ],
     "content": "pixels, 0 to 255"
    },
    "output": {
     "name": "embedding",
     "dtype": "float32",
     "shape": [
      null,
      128
     ],
     "content": "of unit L2 norm"
    }
   }
  },
  "decoding": {
   "formats": [
    "PNG",
    "JPEG"
   ],
   "exif_orientation": "ignored",
   "size_limit": "none",
   "transparency": "on_black",
   "sixteen_bits": "high_byte",
   "grey": "itu_r_601",
   "filter": "lanczos3",
   "reduced_jpeg_keeps": 2,
   "max_difference": 1,
   "max_mean_difference": 0.01
  }
 },
 "parity": {
  "saved_model": 1.0,
  "saved_model_bytes": 0.99999,
  "tflite": 0.999995,
  "num_images": 64
 },
 "min_cosine": 0.9999,
 "certificate_sha256": "cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd",
 "extra": {
  "run": "faces",
  "config_digest": "efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef"
 }
}"""
_DIGEST = 'a23dd1d5e659a6de9ce9a15d96436d653d935f269bd237aac2cae9bf03d47468'


def test_kept_manifest_is_read():
  kept = manifest.Manifest.from_json(json.loads(_KEPT))
  assert kept.digest == _DIGEST
  assert kept.files_digest == kept.model_digest
  assert kept.to_json() == json.loads(_KEPT)
  assert kept.parity.min_cosine == 0.99999


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'schema': 'dpemb.export/1'}, "must have schema 'dpemb.export/2', got"),
    ({'version': 0}, 'version must be >= 1, got 0'),
    ({'version': True}, 'version must be a whole number, got True'),
    ({'model_digest': 'ab'}, 'model_digest must match'),
    ({'files': {'model.tflite': 1}}, r'files.model.tflite must be text, got 1'),
    ({'parity': {}}, 'parity.tflite must be there'),
    ({'certificate_sha256': ''}, 'certificate_sha256 must match'),
    ({'extra': {'more': 1}}, 'extra.more is not part of this form'),
    ({'signature': None}, 'signature must be an object, got None'),
  ],
)
def test_altered_manifest_is_refused(changes, message):
  with pytest.raises(documents.DocumentError, match=message):
    manifest.Manifest.from_json(json.loads(_KEPT) | changes)


def test_an_unknown_certificate_is_none():
  content = json.loads(_KEPT)
  del content['certificate_sha256']
  assert manifest.Manifest.from_json(content).certificate_sha256 is None
