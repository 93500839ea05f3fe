"""A typed client: arrays or files in, arrays out, typed errors.

```python
with client.Client('127.0.0.1:50051') as c:
  embeddings = c.embed(images)              # uint8 [N, H, W, C] -> [N, D]
  found = c.search(images=images[:2], k=5)  # two lists of neighbours
```
A file has one embedding: the server reads it as training does, and one that is
too large for a request is read here, by the same decoder, and sent as pixels.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2
from grpc_health.v1 import health_pb2_grpc

from protos.gen.dpemb.serving.v1 import embedding_service_pb2
from protos.gen.dpemb.serving.v1 import embedding_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import model_service_pb2
from protos.gen.dpemb.serving.v1 import model_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import retrieval_service_pb2
from protos.gen.dpemb.serving.v1 import retrieval_service_pb2_grpc
from serving import batches
from serving import index as index_lib
from serving import servicer
from serving import status

Neighbour = index_lib.Neighbour

# Requests change nothing on the server, so one that met a closing connection
# may be sent again.
_SERVICE_CONFIG = {
  'methodConfig': [
    {
      'name': [{}],
      'retryPolicy': {
        'maxAttempts': 3,
        'initialBackoff': '0.1s',
        'maxBackoff': '1s',
        'backoffMultiplier': 2,
        'retryableStatusCodes': ['UNAVAILABLE'],
      },
    }
  ]
}


@dataclasses.dataclass(frozen=True)
class ModelStatus:
  """What a server told about itself.

  Attributes:
    name, version, digest: The model.
    image_shape: (H, W, C).
    embedding_dim: D.
    certified: Whether the model has a privacy certificate ...
    simulation: ... of a run that protects nobody.
    epsilon, delta: What was proved; None without a certificate.
    index_count: Items in the index; None when there is no index.
    limits: What it takes in a request.
  """

  name: str
  version: int
  digest: str
  image_shape: tuple[int, int, int]
  embedding_dim: int
  certified: bool
  simulation: bool
  epsilon: float | None
  delta: float | None
  index_count: int | None
  limits: batches.Limits


class Client:
  """Calls one server. Several threads may share it. A context manager.

  Embeddings sent to `search` are claimed to be of `model_digest`: by default
  the model that this client met first. If the server has another model by then
  the search is refused, because the scores would mean nothing.
  """

  def __init__(self, address: str, *, deadline_seconds: float = 30.0) -> None:
    """Connects at the first call.

    Args:
      address: `host:port`.
      deadline_seconds: For each request, > 0.
    """
    if not 0 < deadline_seconds < float('inf'):
      raise status.InvalidValue(
        f'deadline_seconds must be > 0, got {deadline_seconds}.'
      )
    self._deadline_seconds = deadline_seconds
    self._channel: grpc.Channel | None = grpc.insecure_channel(
      address,
      options=[
        ('grpc.max_receive_message_length', -1),
        ('grpc.max_send_message_length', -1),
        ('grpc.service_config', json.dumps(_SERVICE_CONFIG)),
        ('grpc.enable_http_proxy', 0),
      ],
    )
    self._embed = self._over_the_wire(
      embedding_service_pb2_grpc.EmbeddingServiceStub(self._channel).Embed
    )
    self._search = self._over_the_wire(
      retrieval_service_pb2_grpc.RetrievalServiceStub(self._channel).Search
    )
    self._get_model_status = self._over_the_wire(
      model_service_pb2_grpc.ModelServiceStub(self._channel).GetModelStatus
    )
    self._status: ModelStatus | None = None

  @classmethod
  def in_process(cls, service: servicer.Service) -> 'Client':
    """Returns a client of a service in this process, without a network."""
    self = cls.__new__(cls)
    self._channel = None
    self._embed = service.embed
    self._search = service.search
    self._get_model_status = service.get_model_status
    self._status = None
    return self

  def __enter__(self) -> 'Client':
    return self

  def __exit__(self, *unused: Any) -> None:
    self.close()

  def close(self) -> None:
    """Closes the connection; calls in flight fail."""
    if self._channel is not None:
      self._channel.close()

  def wait_until_serving(self, *, seconds: float = 30.0) -> None:
    """Returns once the server is healthy.

    Raises:
      status.Unanswered: It is not, after `seconds`.
    """
    if self._channel is None:
      return
    try:
      answer = health_pb2_grpc.HealthStub(self._channel).Check(
        health_pb2.HealthCheckRequest(), timeout=seconds, wait_for_ready=True
      )
    except grpc.RpcError as error:
      raise status.error_of(error) from error
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
      name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
      raise status.Unanswered(f'the server must be SERVING, got {name}.')

  def status(self) -> ModelStatus:
    """Returns the state of the server, asked anew; errors as `embed`."""
    answer = self._get_model_status(model_service_pb2.GetModelStatusRequest())
    shape = answer.signature
    privacy = answer.privacy
    result = ModelStatus(
      name=answer.model.name,
      version=answer.model.version,
      digest=answer.model.digest,
      image_shape=(shape.height, shape.width, shape.channels),
      embedding_dim=shape.embedding_dim,
      certified=privacy.certified,
      simulation=privacy.simulation,
      epsilon=privacy.epsilon if privacy.HasField('epsilon') else None,
      delta=privacy.delta if privacy.HasField('delta') else None,
      index_count=answer.index.count if answer.HasField('index') else None,
      limits=batches.Limits(
        image_shape=(shape.height, shape.width, shape.channels),
        max_message_bytes=answer.limits.max_message_bytes,
        max_images=answer.limits.max_images,
        max_pixels=answer.limits.max_pixels,
        max_request_pixels=answer.limits.max_request_pixels,
      ),
    )
    if self._status is None:
      self._status = result
    return result

  @property
  def model_digest(self) -> str:
    """Digest of the model that this client met first."""
    return self._first_status().digest

  def embed(self, images: np.ndarray | Sequence[bytes]) -> np.ndarray:
    """Returns unit-norm float32 [N, D].

    Args:
      images: uint8 [N, H, W, C] of the model's image shape, or the bytes of N
        files of the formats of `tff_dpemb.images`. Split over several requests
        if need be.

    Raises:
      status.ServingError: The subclass that the server raised, or
        `status.Unanswered`.
    """
    parts = [
      servicer.embeddings_from_proto(
        self._embed(
          embedding_service_pb2.EmbedRequest(
            images=batch, model_digest=self.model_digest
          )
        ).embeddings
      )
      for batch in batches.of_images(images, self._first_status().limits)
    ]
    if not parts:
      return np.zeros([0, self._first_status().embedding_dim], np.float32)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

  def search(
    self,
    *,
    images: np.ndarray | Sequence[bytes] | None = None,
    embeddings: np.ndarray | None = None,
    k: int = servicer.DEFAULT_NEIGHBOURS,
    model_digest: str = '',
  ) -> list[list[Neighbour]]:
    """Returns the `k` nearest items of each query, best first.

    Args:
      images: As for `embed`; or
      embeddings: float32 [N, D] of the served model.
      k: Neighbours of each query, >= 1.
      model_digest: The model that made `embeddings`; empty: see the class.

    Raises:
      status.InvalidValue: Not exactly one of `images` and `embeddings` is
        given, or `k` is below 1.
      status.ServingError: As for `embed`.
    """
    if (images is None) == (embeddings is None):
      raise status.InvalidValue(
        'images or embeddings must be given, and not both.'
      )
    if k < 1:
      raise status.InvalidValue(f'k must be >= 1, got {k}.')
    digest = model_digest or self.model_digest
    limits = self._first_status().limits
    queries: list[dict[str, Any]] = []
    if images is not None:
      queries += [
        {'images': batch} for batch in batches.of_images(images, limits)
      ]
    if embeddings is not None:
      queries += [
        {'embeddings': batch}
        for batch in batches.of_embeddings(embeddings, limits)
      ]
    found: list[list[Neighbour]] = []
    for query in queries:
      answer = self._search(
        retrieval_service_pb2.SearchRequest(
          neighbours=k, model_digest=digest, **query
        )
      )
      found.extend(
        [
          Neighbour(item.id, item.label, item.score, item.position)
          for item in result.neighbours
        ]
        for result in answer.results
      )
    return found

  def _first_status(self) -> ModelStatus:
    return self._status or self.status()

  def _over_the_wire(self, stub: Callable[..., Any]) -> Callable[[Any], Any]:
    def call(request: Any) -> Any:
      try:
        return stub(request, timeout=self._deadline_seconds)
      except grpc.RpcError as error:
        raise status.error_of(error) from error

    return call
