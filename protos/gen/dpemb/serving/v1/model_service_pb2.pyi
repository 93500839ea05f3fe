from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetModelStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelStatusResponse(_message.Message):
    __slots__ = ("model", "signature", "privacy", "index", "limits")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PRIVACY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    model: ModelVersion
    signature: ModelSignature
    privacy: PrivacySummary
    index: IndexSummary
    limits: RequestLimits
    def __init__(self, model: _Optional[_Union[ModelVersion, _Mapping]] = ..., signature: _Optional[_Union[ModelSignature, _Mapping]] = ..., privacy: _Optional[_Union[PrivacySummary, _Mapping]] = ..., index: _Optional[_Union[IndexSummary, _Mapping]] = ..., limits: _Optional[_Union[RequestLimits, _Mapping]] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("name", "version", "digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    digest: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., digest: _Optional[str] = ...) -> None: ...

class ModelSignature(_message.Message):
    __slots__ = ("height", "width", "channels", "embedding_dim")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDING_DIM_FIELD_NUMBER: _ClassVar[int]
    height: int
    width: int
    channels: int
    embedding_dim: int
    def __init__(self, height: _Optional[int] = ..., width: _Optional[int] = ..., channels: _Optional[int] = ..., embedding_dim: _Optional[int] = ...) -> None: ...

class PrivacySummary(_message.Message):
    __slots__ = ("certified", "simulation", "epsilon", "delta", "adjacency", "unit")
    CERTIFIED_FIELD_NUMBER: _ClassVar[int]
    SIMULATION_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    ADJACENCY_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    certified: bool
    simulation: bool
    epsilon: float
    delta: float
    adjacency: str
    unit: str
    def __init__(self, certified: bool = ..., simulation: bool = ..., epsilon: _Optional[float] = ..., delta: _Optional[float] = ..., adjacency: _Optional[str] = ..., unit: _Optional[str] = ...) -> None: ...

class IndexSummary(_message.Message):
    __slots__ = ("count", "dimension", "digest", "model_digest")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    count: int
    dimension: int
    digest: str
    model_digest: str
    def __init__(self, count: _Optional[int] = ..., dimension: _Optional[int] = ..., digest: _Optional[str] = ..., model_digest: _Optional[str] = ...) -> None: ...

class RequestLimits(_message.Message):
    __slots__ = ("max_message_bytes", "max_images", "max_pixels", "max_neighbours", "max_request_pixels")
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_IMAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_NEIGHBOURS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_PIXELS_FIELD_NUMBER: _ClassVar[int]
    max_message_bytes: int
    max_images: int
    max_pixels: int
    max_neighbours: int
    max_request_pixels: int
    def __init__(self, max_message_bytes: _Optional[int] = ..., max_images: _Optional[int] = ..., max_pixels: _Optional[int] = ..., max_neighbours: _Optional[int] = ..., max_request_pixels: _Optional[int] = ...) -> None: ...
