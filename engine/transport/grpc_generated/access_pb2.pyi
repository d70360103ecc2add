from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LoginRequest(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    def __init__(self, message: _Optional[bytes] = ...) -> None: ...

class LoginReply(_message.Message):
    __slots__ = ("message", "token", "lifetime_ms")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    token: str
    lifetime_ms: int
    def __init__(self, message: _Optional[bytes] = ..., token: _Optional[str] = ..., lifetime_ms: _Optional[int] = ...) -> None: ...
