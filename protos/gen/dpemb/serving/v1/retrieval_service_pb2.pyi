from protos.gen.dpemb.serving.v1 import image_pb2 as _image_pb2
from protos.gen.dpemb.serving.v1 import model_service_pb2 as _model_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SearchRequest(_message.Message):
    __slots__ = ("images", "embeddings", "neighbours", "model_digest")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    images: _image_pb2.ImageBatch
    embeddings: _image_pb2.Embeddings
    neighbours: int
    model_digest: str
    def __init__(self, images: _Optional[_Union[_image_pb2.ImageBatch, _Mapping]] = ..., embeddings: _Optional[_Union[_image_pb2.Embeddings, _Mapping]] = ..., neighbours: _Optional[int] = ..., model_digest: _Optional[str] = ...) -> None: ...

class SearchResponse(_message.Message):
    __slots__ = ("results", "model", "index_digest")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INDEX_DIGEST_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[SearchResult]
    model: _model_service_pb2.ModelVersion
    index_digest: str
    def __init__(self, results: _Optional[_Iterable[_Union[SearchResult, _Mapping]]] = ..., model: _Optional[_Union[_model_service_pb2.ModelVersion, _Mapping]] = ..., index_digest: _Optional[str] = ...) -> None: ...

class SearchResult(_message.Message):
    __slots__ = ("neighbours",)
    NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    neighbours: _containers.RepeatedCompositeFieldContainer[Neighbour]
    def __init__(self, neighbours: _Optional[_Iterable[_Union[Neighbour, _Mapping]]] = ...) -> None: ...

class Neighbour(_message.Message):
    __slots__ = ("id", "label", "score", "position")
    ID_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    id: str
    label: str
    score: float
    position: int
    def __init__(self, id: _Optional[str] = ..., label: _Optional[str] = ..., score: _Optional[float] = ..., position: _Optional[int] = ...) -> None: ...
