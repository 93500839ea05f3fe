from protos.gen.dpemb.serving.v1 import image_pb2 as _image_pb2
from protos.gen.dpemb.serving.v1 import model_service_pb2 as _model_service_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EmbedRequest(_message.Message):
    __slots__ = ("images", "model_digest")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    images: _image_pb2.ImageBatch
    model_digest: str
    def __init__(self, images: _Optional[_Union[_image_pb2.ImageBatch, _Mapping]] = ..., model_digest: _Optional[str] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("embeddings", "model", "privacy")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    embeddings: _image_pb2.Embeddings
    model: _model_service_pb2.ModelVersion
    privacy: _model_service_pb2.PrivacySummary
    def __init__(self, embeddings: _Optional[_Union[_image_pb2.Embeddings, _Mapping]] = ..., model: _Optional[_Union[_model_service_pb2.ModelVersion, _Mapping]] = ..., privacy: _Optional[_Union[_model_service_pb2.PrivacySummary, _Mapping]] = ...) -> None: ...
