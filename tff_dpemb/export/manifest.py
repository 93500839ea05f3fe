"""The manifest of an export: what its files are, and where they come from."""

from typing import Literal

from tff_dpemb.artifacts import documents
from tff_dpemb.export import signature as signature_lib


class Parity(documents.Value):
  """Smallest cosine between the live model's embedding and an artefact's.

  Attributes:
    saved_model: Over the `embed_uint8` signature.
    saved_model_bytes: Over `embed_bytes`, the images encoded as PNG.
    tflite: Over batches of 1, of 4 and of all images.
    num_images: How many images were compared.
  """

  saved_model: float
  saved_model_bytes: float
  tflite: float
  num_images: documents.PositiveCount

  @property
  def min_cosine(self) -> float:
    """The smallest of all of them."""
    return min(self.saved_model, self.saved_model_bytes, self.tflite)


class Extra(documents.Value):
  """Which run made the model; empty where nobody said.

  Attributes:
    run: Name of the run.
    config_digest: Digest of its configuration.
  """

  run: str = ''
  config_digest: documents.MaybeSha256 = ''


class Manifest(documents.Manifest):
  """`manifest.json` of a version.

  Attributes:
    name: Name of the model.
    version: Counted from 1.
    created: When, ISO 8601 in UTC.
    model_digest: The digest of `files`, which embeddings and indexes carry.
      The certificate is not among them, because it may name this digest.
    signature: What the artefacts answer.
    parity: How near they are to the live model.
    min_cosine: The gate that `parity` passed.
    certificate_sha256: Of `certificate.json`; None: nothing is promised.
    extra: Which run made it.
  """

  remedy = 'publish the model again with this release'

  schema_name: Literal['dpemb.export/2'] = documents.schema('dpemb.export/2')
  name: str
  version: documents.PositiveCount
  created: str
  model_digest: documents.Sha256
  signature: signature_lib.Signature
  parity: Parity
  min_cosine: float
  certificate_sha256: documents.Sha256 | None = None
  extra: Extra = Extra()
