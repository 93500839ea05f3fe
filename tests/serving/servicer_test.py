"""What the RPCs answer: one class of tests, in process and over the wire."""

import grpc
import numpy as np
import pytest
from PIL import Image
from PIL import PngImagePlugin

from protos.gen.dpemb.serving.v1 import embedding_service_pb2
from protos.gen.dpemb.serving.v1 import embedding_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import image_pb2
from protos.gen.dpemb.serving.v1 import model_service_pb2
from protos.gen.dpemb.serving.v1 import model_service_pb2_grpc
from protos.gen.dpemb.serving.v1 import retrieval_service_pb2
from protos.gen.dpemb.serving.v1 import retrieval_service_pb2_grpc
from serving import client as client_lib
from serving import images as images_lib
from serving import index as index_lib
from serving import server
from serving import servicer
from serving import status
from tff_dpemb import images as image_codec

_ONE_IMAGE = np.zeros([1, 12, 10, 3], np.uint8)


class _Wire:
  """The methods of `Service`, over a channel."""

  def __init__(self, channel):
    self._stubs = {
      'embed': embedding_service_pb2_grpc.EmbeddingServiceStub(channel).Embed,
      'search': retrieval_service_pb2_grpc.RetrievalServiceStub(channel).Search,
      'get_model_status': model_service_pb2_grpc.ModelServiceStub(
        channel
      ).GetModelStatus,
    }

  def __getattr__(self, name):
    def call(request):
      try:
        return self._stubs[name](request, timeout=20)
      except grpc.RpcError as error:
        raise status.error_of(error) from error

    return call


@pytest.fixture(scope='class', params=['in process', 'over the wire'])
def answers(request):
  """The three methods of a service."""
  if request.param == 'in process':
    yield request.getfixturevalue('service')
    return
  with grpc.insecure_channel(request.getfixturevalue('address')) as channel:
    yield _Wire(channel)


def _raw(images):
  count, height, width, channels = images.shape
  return image_pb2.ImageBatch(
    raw=image_pb2.RawImages(
      pixels=images.tobytes(),
      count=count,
      height=height,
      width=width,
      channels=channels,
    )
  )


def _files(*contents):
  return image_pb2.ImageBatch(
    encoded=image_pb2.EncodedImages(contents=contents)
  )


def _search(**values):
  return retrieval_service_pb2.SearchRequest(**values)


class TestAnswers:
  def test_embeds_raw_images(self, answers, export, random_images):
    images = random_images(5)
    response = answers.embed(
      embedding_service_pb2.EmbedRequest(images=_raw(images))
    )
    actual = servicer.embeddings_from_proto(response.embeddings)
    assert (actual * export.embed(images)).sum(axis=1).min() >= 0.9999
    assert response.model.digest == export.digest
    assert (response.model.name, response.model.version) == ('faces', 1)
    assert response.privacy.certified
    assert response.privacy.epsilon == 3.5
    assert response.privacy.adjacency == 'add-or-remove-one-user'

  @pytest.mark.parametrize(
    ('shape', 'form', 'options'),
    [
      ((12, 10, 3), 'PNG', {}),
      ((12, 10), 'PNG', {}),
      ((40, 60, 3), 'PNG', {}),
      ((7, 5, 3), 'PNG', {}),
      ((12, 10, 3), 'JPEG', {'quality': 90}),
      ((60, 40, 3), 'JPEG', {'quality': 90}),
    ],
  )
  def test_files_embed_as_the_export_embeds_them(
    self, answers, export, encode, random_images, shape, form, options
  ):
    """As the one decoder reads them, and nearly as the export's graph does."""
    image = random_images(1, shape, seed=3)[0]
    # Smooth, as pictures are; noise would test the resampling filter only.
    ramp = np.linspace(0, 200, shape[0])[:, np.newaxis]
    image = (image * 0.2 + ramp.reshape([-1] + [1] * (len(shape) - 1))).astype(
      np.uint8
    )
    content = encode(image, form, **options)
    response = answers.embed(
      embedding_service_pb2.EmbedRequest(images=_files(content))
    )
    actual = servicer.embeddings_from_proto(response.embeddings)
    pixels = image_codec.decode(content, export.image_shape)
    for expected, least in (
      (export.embed(pixels[np.newaxis]), 0.99999),
      (export.embed_bytes([content]), 0.9999),
    ):
      assert (actual * expected).sum(axis=1).min() >= least

  def test_searches_by_embedding(self, answers, export, gallery):
    queries = gallery.embeddings[:4] + np.float32(0.01)
    response = answers.search(
      _search(
        embeddings=servicer.proto_from_embeddings(queries),
        neighbours=7,
        model_digest=export.digest,
      )
    )
    _, expected = index_lib.exact_search(gallery.embeddings, queries, 7)
    actual = [[n.position for n in r.neighbours] for r in response.results]
    np.testing.assert_array_equal(actual, expected)
    first = response.results[0].neighbours[0]
    assert first.id == f'item-{first.position}'
    assert first.label == f'class-{first.position % 7}'
    assert response.model.digest == export.digest
    assert len(response.index_digest) == 64

  def test_searches_by_image(self, answers, gallery):
    response = answers.search(
      _search(images=_raw(gallery.images[[5, 8]]), neighbours=2)
    )
    assert [n.id for n in response.results[0].neighbours] == [
      'item-5',
      'item-30',  # The same image: a tie, in order of position.
    ]
    best = response.results[1].neighbours[0]
    assert best.id == 'item-8'
    assert best.score == pytest.approx(1, abs=1e-5)

  def test_searches_for_ten_by_default(self, answers, gallery):
    response = answers.search(_search(images=_raw(gallery.images[:1])))
    assert len(response.results[0].neighbours) == 10

  def test_tells_its_state(self, answers, export, gallery):
    response = answers.get_model_status(
      model_service_pb2.GetModelStatusRequest()
    )
    shape = response.signature
    assert (shape.height, shape.width, shape.channels) == export.image_shape
    assert shape.embedding_dim == 16
    assert response.index.count == 60
    assert response.index.model_digest == export.digest
    assert response.limits.max_images == 32
    assert response.limits.max_pixels == 10_000
    assert response.privacy.delta == 1e-5

  def test_refuses_another_model(self, answers, export, gallery):
    """Embeddings of a model of the same dimension must not be mixed in."""
    for call in (
      lambda digest: answers.embed(
        embedding_service_pb2.EmbedRequest(
          images=_raw(gallery.images[:1]), model_digest=digest
        )
      ),
      lambda digest: answers.search(
        _search(
          embeddings=servicer.proto_from_embeddings(gallery.embeddings[:1]),
          model_digest=digest,
        )
      ),
    ):
      call(export.digest)
      with pytest.raises(
        status.ModelMismatch, match=f'must be {export.digest}.*, got 0000'
      ):
        call('0' * 64)

  @pytest.mark.parametrize(
    ('images', 'field', 'message'),
    [
      (image_pb2.ImageBatch(), 'images', 'images must be set'),
      (
        _raw(np.zeros([1, 10, 12, 3], np.uint8)),
        'images.raw',
        r'\(12, 10, 3\)',
      ),
      (
        _raw(np.zeros([33, 12, 10, 3], np.uint8)),
        'images.raw',
        '1 to 32 images, got 33',
      ),
      (_files(b'x'), 'images.encoded.contents[0]', 'must be one of PNG'),
    ],
  )
  def test_refuses_bad_images(self, answers, images, field, message):
    for call in (
      lambda: answers.embed(embedding_service_pb2.EmbedRequest(images=images)),
      lambda: answers.search(_search(images=images)),
    ):
      with pytest.raises(status.InvalidRequest, match=message) as caught:
        call()
      assert caught.value.field == field

  @pytest.mark.parametrize(
    ('values', 'field', 'message'),
    [
      ({}, 'query', 'query must be set'),
      (
        {'embeddings': image_pb2.Embeddings(), 'model_digest': ''},
        'model_digest',
        'model_digest must be set with embeddings',
      ),
      (
        {'embeddings': image_pb2.Embeddings()},
        'embeddings',
        'must hold 1 to 32 queries, got 0',
      ),
      (
        {'embeddings': image_pb2.Embeddings(count=33)},
        'embeddings',
        '1 to 32 queries, got 33; split',
      ),
      (
        {'embeddings': image_pb2.Embeddings(count=1, dimension=15)},
        'embeddings.dimension',
        'must be 16, got 15',
      ),
      (
        {
          'embeddings': image_pb2.Embeddings(
            count=2, dimension=16, values=bytes(64)
          )
        },
        'embeddings.values',
        'must be 128 bytes .*, got 64',
      ),
      (
        {'embeddings': servicer.proto_from_embeddings(np.zeros([1, 16]))},
        'embeddings.values',
        'finite and not zero, got 1 bad of 1',
      ),
      (
        {
          'embeddings': servicer.proto_from_embeddings(
            np.full([1, 16], np.nan, np.float32)
          )
        },
        'embeddings.values',
        'finite and not zero',
      ),
      ({'neighbours': 51}, 'neighbours', 'neighbours must be <= 50, got 51'),
    ],
  )
  def test_refuses_bad_queries(self, answers, export, values, field, message):
    values = {'model_digest': export.digest} | values
    with pytest.raises(status.InvalidRequest, match=message) as caught:
      answers.search(_search(**values))
    assert caught.value.field == field


class _Model:
  """A model that is never asked to embed."""

  def __init__(self, export):
    self.export = export


def test_no_index(export):
  with pytest.raises(status.NoIndex, match='got none; start it with --index'):
    servicer.Service(_Model(export)).search(_search())


def test_index_of_another_model(export, gallery, tmp_path):
  other = index_lib.build(
    tmp_path / 'index', gallery.embeddings, range(60), model_digest='0' * 64
  )
  service = servicer.Service(_Model(export), index=other)
  with pytest.raises(status.ModelMismatch, match='`dpemb index`'):
    service.search(
      _search(
        embeddings=servicer.proto_from_embeddings(gallery.embeddings[:1]),
        model_digest=export.digest,
      )
    )


class _Broken:
  """A service whose answers fail with something that nobody may see."""

  limits = images_lib.Limits()

  def embed(self, request):
    raise RuntimeError(f'secret {request.images.raw.pixels!r}')

  search = get_model_status = embed


def test_an_unforeseen_failure_tells_nothing(caplog):
  request = embedding_service_pb2.EmbedRequest(images=_raw(_ONE_IMAGE))
  with (
    server.running(_Broken()) as address,
    grpc.insecure_channel(address) as channel,
  ):
    with pytest.raises(
      status.Unanswered, match='failed to answer; its log'
    ) as caught:
      _Wire(channel).embed(request)
  assert 'secret' not in str(caught.value)
  assert 'embed failed' in caplog.text


def test_admission_bounds_what_waits():
  admission = servicer.Admission(
    images_lib.Limits(max_images=8, max_pending_images=10, max_pending_bytes=99)
  )
  with admission.admitted(8, 50):
    with pytest.raises(
      status.Overloaded, match='waiting images must be <= 10 .*got 11'
    ):
      with admission.admitted(3, 1):
        pass
    with pytest.raises(status.Overloaded, match=r'bytes <= 99'):
      with admission.admitted(1, 50):
        pass
    with admission.admitted(2, 49):
      assert admission.pending_images == 10
  assert (admission.pending_images, admission.pending_bytes) == (0, 0)


class TestClient:
  """The typed client, over the wire."""

  @pytest.fixture(params=['in process', 'over the wire'])
  def client(self, request):
    if request.param == 'in process':
      return client_lib.Client.in_process(request.getfixturevalue('service'))
    client = client_lib.Client(request.getfixturevalue('address'))
    request.addfinalizer(client.close)
    return client

  def test_splits_what_is_over_the_limits(self, client, export, random_images):
    images = random_images(200)  # 7 requests by count, 2 by bytes.
    actual = client.embed(images)
    assert actual.dtype == np.float32
    assert (actual * export.embed(images)).sum(axis=1).min() >= 0.9999
    assert client.embed(images[:0]).shape == (0, 16)
    assert client.model_digest == export.digest

  def test_sends_files(self, client, export, encode, random_images):
    images = random_images(40)
    actual = client.embed([encode(image) for image in images])
    assert (actual * export.embed(images)).sum(axis=1).min() >= 0.9999

  def test_splits_files_by_the_pixels_that_they_state(
    self, client, export, encode, random_images
  ):
    large = random_images(8, (90, 90, 3))  # 3 a request.
    files = [encode(image) for image in large]
    pixels = [image_codec.decode(file, export.image_shape) for file in files]
    expected = export.embed(np.stack(pixels))
    assert (client.embed(files) * expected).sum(axis=1).min() >= 0.99999

  def test_a_file_over_the_message_cap_is_read_here(
    self, client, export, encode, random_images
  ):
    """In its place among the others, and as the server would read it."""
    comment = PngImagePlugin.PngInfo()
    comment.add_text('comment', 'x' * 70_000)
    exif = Image.Exif()
    exif[0x0112] = 3  # Upside down.
    images = random_images(3, (40, 30, 3))
    files = [
      encode(images[0]),
      encode(images[1], pnginfo=comment, exif=exif),
      encode(images[2]),
    ]
    pixels = [image_codec.decode(file, export.image_shape) for file in files]
    expected = export.embed(np.stack(pixels))
    assert (client.embed(files) * expected).sum(axis=1).min() >= 0.99999
    with pytest.raises(
      status.InvalidRequest, match=r'images\[1\] must be one of PNG, JPEG'
    ):
      client.embed([files[0], b'x' * 70_000])

  def test_search(self, client, gallery):
    by_image = client.search(images=gallery.images[:40], k=3)
    by_embedding = client.search(embeddings=gallery.embeddings[:40], k=3)
    assert len(by_image) == 40
    for one, other in zip(by_image, by_embedding, strict=True):
      assert [n.id for n in one] == [n.id for n in other]
    assert by_image[5][1].id == 'item-30'
    assert by_image[5][1].label == 'class-2'

  def test_stale_embeddings(self, client, gallery):
    with pytest.raises(status.ModelMismatch):
      client.search(embeddings=gallery.embeddings[:1], model_digest='0' * 64)

  def test_status(self, client):
    found = client.status()
    assert found.image_shape == (12, 10, 3)
    assert found.embedding_dim == 16
    assert found.index_count == 60
    assert (found.certified, found.simulation) == (True, False)
    assert (found.epsilon, found.delta) == (3.5, 1e-5)

  def test_bad_arguments(self, client, random_images):
    with pytest.raises(status.InvalidRequest, match='do not normalise'):
      client.embed(random_images(1).astype(np.float32))
    with pytest.raises(ValueError, match='and not both'):
      client.search()
    with pytest.raises(ValueError, match='k must be >= 1, got 0'):
      client.search(images=random_images(1), k=0)
