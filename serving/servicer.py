"""What each RPC answers: requests in, responses out, no network.

`Service` is the whole of it. The shells at the end put it behind grpc.aio: they
admit a request or refuse it at once, run it in a thread, and turn errors into
statuses.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np

from protos.gen.dpemb.serving.v1 import embedding_service_pb2
from protos.gen.dpemb.serving.v1 import embedding_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import image_pb2
from protos.gen.dpemb.serving.v1 import model_service_pb2
from protos.gen.dpemb.serving.v1 import model_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import retrieval_service_pb2
from protos.gen.dpemb.serving.v1 import retrieval_service_pb2_grpc
from serving import images as images_lib
from serving import index as index_lib
from serving import model_store
from serving import status

DEFAULT_NEIGHBOURS = 10

_LOG = logging.getLogger(__name__)


class Service:
  """Answers requests with one model and at most one index. Thread-safe."""

  def __init__(
    self,
    model: model_store.ServedModel,
    *,
    index: index_lib.Index | None = None,
    limits: images_lib.Limits | None = None,
  ) -> None:
    self.model = model
    self.index = index
    self.limits = limits or images_lib.Limits()

  def embed(
    self, request: embedding_service_pb2.EmbedRequest
  ) -> embedding_service_pb2.EmbedResponse:
    """Returns the embeddings; `status.ServingError` as the proto says."""
    self._check_model(request.model_digest)
    embeddings = self._embed(request.images)
    return embedding_service_pb2.EmbedResponse(
      embeddings=proto_from_embeddings(embeddings),
      model=self.model.version(),
      privacy=model_store.privacy_summary(self.model.export),
    )

  def search(
    self, request: retrieval_service_pb2.SearchRequest
  ) -> retrieval_service_pb2.SearchResponse:
    """Returns the neighbours; `status.ServingError` as the proto says."""
    index = self._checked_index()
    k = request.neighbours or DEFAULT_NEIGHBOURS
    if k > self.limits.max_neighbours:
      raise status.InvalidRequest(
        f'neighbours must be <= {self.limits.max_neighbours}, got {k}.',
        field='neighbours',
      )
    query = request.WhichOneof('query')
    if query == 'embeddings' and not request.model_digest:
      raise status.InvalidRequest(
        'model_digest must be set with embeddings, got an empty string; send'
        ' the digest that came with them.',
        field='model_digest',
      )
    self._check_model(request.model_digest)
    match query:
      case 'images':
        queries = self._embed(request.images)
      case 'embeddings':
        queries = self._queries(request.embeddings)
      case _:
        raise status.InvalidRequest(
          'query must be set: images or embeddings.', field='query'
        )
    results = [
      retrieval_service_pb2.SearchResult(
        neighbours=[
          retrieval_service_pb2.Neighbour(
            id=found.id,
            label=found.label,
            score=found.score,
            position=found.position,
          )
          for found in neighbours
        ]
      )
      for neighbours in index.neighbours(queries, k)
    ]
    return retrieval_service_pb2.SearchResponse(
      results=results,
      model=self.model.version(),
      index_digest=index.digest,
    )

  def get_model_status(
    self, request: model_service_pb2.GetModelStatusRequest
  ) -> model_service_pb2.GetModelStatusResponse:
    """Returns the state of the server."""
    del request  # It has no fields.
    response = model_service_pb2.GetModelStatusResponse(
      model=self.model.version(),
      signature=self.model.model_signature(),
      privacy=model_store.privacy_summary(self.model.export),
      limits=model_service_pb2.RequestLimits(
        max_message_bytes=self.limits.max_message_bytes,
        max_images=self.limits.max_images,
        max_pixels=self.limits.max_pixels,
        max_request_pixels=self.limits.max_request_pixels,
        max_neighbours=self.limits.max_neighbours,
      ),
    )
    if self.index is not None:
      response.index.count = len(self.index)
      response.index.dimension = self.index.dimension
      response.index.digest = self.index.digest
      response.index.model_digest = self.index.model_digest
    return response

  def _embed(self, batch: image_pb2.ImageBatch) -> np.ndarray:
    images = images_lib.images_from_batch(
      batch, signature=self.model.export.signature, limits=self.limits
    )
    return self.model.embed(images)

  def _queries(self, embeddings: image_pb2.Embeddings) -> np.ndarray:
    images_lib.check_count(
      embeddings.count, limits=self.limits, field='embeddings', what='queries'
    )
    dimension = self.model.export.embedding_dim
    if embeddings.dimension != dimension:
      raise status.InvalidRequest(
        f'embeddings.dimension must be {dimension}, got'
        f' {embeddings.dimension}; embed the images with the served model.',
        field='embeddings.dimension',
      )
    expected = 4 * embeddings.count * dimension
    if len(embeddings.values) != expected:
      raise status.InvalidRequest(
        f'embeddings.values must be {expected} bytes (4 * count * dimension),'
        f' got {len(embeddings.values)}; send little-endian float32.',
        field='embeddings.values',
      )
    try:
      return index_lib.unit_rows(
        embeddings_from_proto(embeddings), name='embeddings.values'
      )
    except status.InvalidValue as error:
      raise status.InvalidRequest(
        str(error), field='embeddings.values'
      ) from error

  def _check_model(self, digest: str) -> None:
    served = self.model.export.digest
    if digest and digest != served:
      raise status.ModelMismatch(
        f'model_digest must be {served} (the served model), got {digest};'
        ' embed the images again with the served model.'
      )

  def _checked_index(self) -> index_lib.Index:
    if self.index is None:
      raise status.NoIndex(
        'the server must have an index to search, got none; start it with'
        ' --index.'
      )
    model_store.check_index(self.index.model_digest, self.model.export)
    return self.index


def proto_from_embeddings(embeddings: np.ndarray) -> image_pb2.Embeddings:
  """Returns float32 [N, D] as a message."""
  count, dimension = embeddings.shape
  return image_pb2.Embeddings(
    values=np.ascontiguousarray(embeddings, '<f4').tobytes(),
    count=count,
    dimension=dimension,
  )


def embeddings_from_proto(message: image_pb2.Embeddings) -> np.ndarray:
  """Returns a message as float32 [N, D]; the sizes must have been checked."""
  values = np.frombuffer(message.values, '<f4')
  return values.reshape(message.count, message.dimension).astype(np.float32)


class Admission:
  """Bounds what waits, so that overload is answered at once. Loop-bound."""

  def __init__(self, limits: images_lib.Limits) -> None:
    self._limits = limits
    self.pending_images = 0
    self.pending_bytes = 0

  @contextlib.contextmanager
  def admitted(self, images: int, size_bytes: int) -> Iterator[None]:
    """Holds room for a request; `status.Overloaded` if there is none."""
    images = max(1, min(images, self._limits.max_images))
    limits = self._limits
    if (
      self.pending_images + images > limits.max_pending_images
      or self.pending_bytes + size_bytes > limits.max_pending_bytes
    ):
      raise status.Overloaded(
        f'waiting images must be <= {limits.max_pending_images} (bytes <='
        f' {limits.max_pending_bytes}), got {self.pending_images + images}'
        f' ({self.pending_bytes + size_bytes}); try again in a second.'
      )
    self.pending_images += images
    self.pending_bytes += size_bytes
    try:
      yield
    finally:
      self.pending_images -= images
      self.pending_bytes -= size_bytes


class _Shell:
  """Runs a method of `Service` for an RPC."""

  def __init__(
    self,
    service: Service,
    executor: concurrent.futures.Executor,
    admission: Admission,
  ) -> None:
    self._service = service
    self._executor = executor
    self._admission = admission

  async def _answer(
    self,
    method: Callable[[Any], Any],
    request: Any,
    context: grpc.aio.ServicerContext,
    *,
    images: int,
  ) -> Any:
    try:
      with self._admission.admitted(images, request.ByteSize()):
        # If the caller gives up while this waits, the task is cancelled and
        # the executor drops it.
        return await asyncio.get_running_loop().run_in_executor(
          self._executor, method, request
        )
    except status.ServingError as error:
      failure = error
    except asyncio.CancelledError:
      raise
    except Exception as error:  # noqa: BLE001 -- no detail may reach the caller.
      _LOG.error('%s failed.', method.__name__, exc_info=error)
      failure = status.ServingError(
        'the server failed to answer; its log tells why.'
      )
    await context.abort(
      failure.code,
      str(failure),
      ((status.DETAILS_KEY, status.details_of(failure)),),
    )


class EmbeddingServicer(
  _Shell, embedding_service_pb2_grpc.EmbeddingServiceServicer
):
  """`EmbeddingService` over grpc.aio."""

  async def Embed(self, request, context):  # noqa: N802 -- name of the RPC.
    """Answers `Embed`."""
    return await self._answer(
      self._service.embed,
      request,
      context,
      images=images_lib.count_of(request.images),
    )


class RetrievalServicer(
  _Shell, retrieval_service_pb2_grpc.RetrievalServiceServicer
):
  """`RetrievalService` over grpc.aio."""

  async def Search(self, request, context):  # noqa: N802 -- name of the RPC.
    """Answers `Search`."""
    images = (
      request.embeddings.count
      if request.WhichOneof('query') == 'embeddings'
      else images_lib.count_of(request.images)
    )
    return await self._answer(
      self._service.search, request, context, images=images
    )


class ModelServicer(_Shell, model_service_pb2_grpc.ModelServiceServicer):
  """`ModelService` over grpc.aio."""

  async def GetModelStatus(self, request, context):  # noqa: N802
    """Answers `GetModelStatus`; it needs no thread."""
    del context  # Never fails.
    return self._service.get_model_status(request)
