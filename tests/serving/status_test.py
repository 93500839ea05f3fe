"""Tests of serving.status."""

import grpc
import pytest

from serving import status


class _Failed(grpc.RpcError):
  """A failed call, as a stub raises it."""

  def __init__(self, code, details, metadata=()):
    self._values = (code, details, metadata)

  def code(self):
    return self._values[0]

  def details(self):
    return self._values[1]

  def trailing_metadata(self):
    return self._values[2]


@pytest.mark.parametrize(
  ('error', 'code'),
  [
    (status.InvalidRequest('a.b must be 1.', field='a.b'), 'INVALID_ARGUMENT'),
    (status.ModelMismatch('other model.'), 'FAILED_PRECONDITION'),
    (status.NoIndex('no index.'), 'FAILED_PRECONDITION'),
    (status.Overloaded('too much.'), 'RESOURCE_EXHAUSTED'),
  ],
)
def test_an_error_arrives_as_it_was_raised(error, code):
  metadata = ((status.DETAILS_KEY, status.details_of(error)),)
  arrived = status.error_of(_Failed(error.code, str(error), metadata))
  assert error.code.name == code
  assert type(arrived) is type(error)
  assert str(arrived) == str(error)
  assert getattr(arrived, 'field', '') == getattr(error, 'field', '')


def test_overload_tells_when_to_try_again():
  from google.rpc import error_details_pb2
  from google.rpc import status_pb2

  raw = status.details_of(status.Overloaded('too much.'))
  retry = error_details_pb2.RetryInfo()
  unpacked = [
    d.Unpack(retry) for d in status_pb2.Status.FromString(raw).details
  ]
  assert any(unpacked)
  assert retry.retry_delay.seconds == 1


def test_foreign_failures():
  arrived = status.error_of(_Failed(grpc.StatusCode.UNAVAILABLE, 'gone'))
  assert type(arrived) is status.Unanswered
  assert 'UNAVAILABLE: gone' in str(arrived)


def test_too_large_names_the_flag():
  arrived = status.error_of(
    _Failed(
      grpc.StatusCode.RESOURCE_EXHAUSTED,
      'Received message larger than max (9 vs. 8)',
    )
  )
  assert type(arrived) is status.InvalidRequest
  assert '--max-message-bytes' in str(arrived)
