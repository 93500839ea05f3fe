from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ImageBatch(_message.Message):
    __slots__ = ("raw", "encoded")
    RAW_FIELD_NUMBER: _ClassVar[int]
    ENCODED_FIELD_NUMBER: _ClassVar[int]
    raw: RawImages
    encoded: EncodedImages
    def __init__(self, raw: _Optional[_Union[RawImages, _Mapping]] = ..., encoded: _Optional[_Union[EncodedImages, _Mapping]] = ...) -> None: ...

class RawImages(_message.Message):
    __slots__ = ("pixels", "count", "height", "width", "channels")
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    pixels: bytes
    count: int
    height: int
    width: int
    channels: int
    def __init__(self, pixels: _Optional[bytes] = ..., count: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., channels: _Optional[int] = ...) -> None: ...

class EncodedImages(_message.Message):
    __slots__ = ("contents",)
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    contents: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, contents: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Embeddings(_message.Message):
    __slots__ = ("values", "count", "dimension")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    values: bytes
    count: int
    dimension: int
    def __init__(self, values: _Optional[bytes] = ..., count: _Optional[int] = ..., dimension: _Optional[int] = ...) -> None: ...
