"""Errors of serving, and how they travel as gRPC statuses.

```
ServingError
  InvalidRequest      INVALID_ARGUMENT     the request breaks a rule
  ModelMismatch       FAILED_PRECONDITION  embeddings of different models
  NoIndex             FAILED_PRECONDITION  nothing to search
  Overloaded          RESOURCE_EXHAUSTED   too much waits; retry later
  Unanswered          UNAVAILABLE, ...     no answer came (client side)
  InvalidValue                             an argument that breaks a rule
  UnprotectedExport                        refused when the server starts
  IndexDamaged                             refused when the server starts
  CannotListen                             refused when the server starts
```
The client raises the class that the server raised. Every message states the
field, the rule, the value and the remedy; none holds an image or an embedding.
"""

import grpc
from google.protobuf import any_pb2
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2
from google.rpc import status_pb2

DOMAIN = 'dpemb.serving.v1'
DETAILS_KEY = 'grpc-status-details-bin'

_RETRY_AFTER_SECONDS = 1


class ServingError(RuntimeError):
  """Base of the errors of serving."""

  code = grpc.StatusCode.INTERNAL
  reason = 'INTERNAL'


class InvalidRequest(ServingError):
  """A request that breaks a rule. `field` is the path of the proto field."""

  code = grpc.StatusCode.INVALID_ARGUMENT
  reason = 'INVALID_REQUEST'

  def __init__(self, message: str, *, field: str = '') -> None:
    super().__init__(message)
    self.field = field


class ModelMismatch(ServingError):
  """Embeddings of one model were about to meet those of another."""

  code = grpc.StatusCode.FAILED_PRECONDITION
  reason = 'MODEL_MISMATCH'


class NoIndex(ServingError):
  """The server has no index."""

  code = grpc.StatusCode.FAILED_PRECONDITION
  reason = 'NO_INDEX'


class Overloaded(ServingError):
  """More waits than the server holds."""

  code = grpc.StatusCode.RESOURCE_EXHAUSTED
  reason = 'OVERLOADED'


class Unanswered(ServingError):
  """The server gave no answer: unreachable, stopping, too slow, or broken."""

  code = grpc.StatusCode.UNAVAILABLE
  reason = 'UNANSWERED'


class InvalidValue(ServingError, ValueError):
  """An argument of this package that breaks a rule."""


class UnprotectedExport(ServingError):
  """A model that nothing is promised about."""


class IndexDamaged(ServingError):
  """An index that is missing, not whole, or cannot be written."""


class CannotListen(ServingError):
  """The address is taken or not ours."""


_BY_REASON = {
  error.reason: error
  for error in (InvalidRequest, ModelMismatch, NoIndex, Overloaded)
}


def details_of(error: ServingError) -> bytes:
  """Returns the serialised `google.rpc.Status` of an error."""
  details = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN)]
  if isinstance(error, InvalidRequest):
    violation = error_details_pb2.BadRequest.FieldViolation(
      field=error.field, description=str(error)
    )
    details.append(error_details_pb2.BadRequest(field_violations=[violation]))
  if isinstance(error, Overloaded):
    delay = duration_pb2.Duration(seconds=_RETRY_AFTER_SECONDS)
    details.append(error_details_pb2.RetryInfo(retry_delay=delay))
  packed = []
  for detail in details:
    packed.append(any_pb2.Any())
    packed[-1].Pack(detail)
  status = status_pb2.Status(
    code=error.code.value[0], message=str(error), details=packed
  )
  return status.SerializeToString()


def error_of(rpc_error: grpc.RpcError) -> ServingError:
  """Returns the error that a failed call stands for."""
  message = rpc_error.details() or ''
  for key, value in rpc_error.trailing_metadata() or ():
    if key == DETAILS_KEY:
      return _error_from_details(value, message)
  code = rpc_error.code()
  if (
    code == grpc.StatusCode.RESOURCE_EXHAUSTED and 'larger than max' in message
  ):
    # gRPC itself refused; its words name neither the flag nor the remedy.
    return InvalidRequest(
      'the request must be at most max_message_bytes of the server'
      f' ({message}); send fewer images a request, or start the server with'
      ' a larger --max-message-bytes.'
    )
  return Unanswered(f'the server must answer, got {code.name}: {message}')


def _error_from_details(value: bytes, message: str) -> ServingError:
  status = status_pb2.Status.FromString(value)
  kind: type[ServingError] = Unanswered
  field = ''
  for detail in status.details:
    info = error_details_pb2.ErrorInfo()
    if detail.Unpack(info) and info.domain == DOMAIN:
      kind = _BY_REASON.get(info.reason, Unanswered)
    request = error_details_pb2.BadRequest()
    if detail.Unpack(request) and request.field_violations:
      field = request.field_violations[0].field
  if kind is InvalidRequest:
    return InvalidRequest(message, field=field)
  return kind(message)
