from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Transaction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRANSACTION_NONE: _ClassVar[Transaction]
    TRANSACTION_OPEN: _ClassVar[Transaction]
    TRANSACTION_ENDED: _ClassVar[Transaction]

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_READ_COMMITTED: _ClassVar[Isolation]
    ISOLATION_SNAPSHOT: _ClassVar[Isolation]
TRANSACTION_NONE: Transaction
TRANSACTION_OPEN: Transaction
TRANSACTION_ENDED: Transaction
ISOLATION_READ_COMMITTED: Isolation
ISOLATION_SNAPSHOT: Isolation

class Failure(_message.Message):
    __slots__ = ("name", "code", "message", "hint", "place", "retryable", "leader", "session_lost")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    SESSION_LOST_FIELD_NUMBER: _ClassVar[int]
    name: str
    code: str
    message: str
    hint: str
    place: int
    retryable: bool
    leader: str
    session_lost: bool
    def __init__(self, name: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ..., hint: _Optional[str] = ..., place: _Optional[int] = ..., retryable: _Optional[bool] = ..., leader: _Optional[str] = ..., session_lost: _Optional[bool] = ...) -> None: ...

class OpenRequest(_message.Message):
    __slots__ = ("tablespace", "without_autocommit", "isolation", "lease_ms", "client")
    TABLESPACE_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_AUTOCOMMIT_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    tablespace: str
    without_autocommit: bool
    isolation: Isolation
    lease_ms: int
    client: bytes
    def __init__(self, tablespace: _Optional[str] = ..., without_autocommit: _Optional[bool] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., lease_ms: _Optional[int] = ..., client: _Optional[bytes] = ...) -> None: ...

class OpenReply(_message.Message):
    __slots__ = ("failure", "session", "lease_ms")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    session: bytes
    lease_ms: int
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., session: _Optional[bytes] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("session", "text", "parameters")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    text: str
    parameters: bytes
    def __init__(self, session: _Optional[bytes] = ..., text: _Optional[str] = ..., parameters: _Optional[bytes] = ...) -> None: ...

class ExecuteReply(_message.Message):
    __slots__ = ("failure", "transaction", "kind", "count", "last_id", "arrow")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    ARROW_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    transaction: Transaction
    kind: str
    count: int
    last_id: int
    arrow: bytes
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., transaction: _Optional[_Union[Transaction, str]] = ..., kind: _Optional[str] = ..., count: _Optional[int] = ..., last_id: _Optional[int] = ..., arrow: _Optional[bytes] = ...) -> None: ...

class ExecuteManyRequest(_message.Message):
    __slots__ = ("session", "text", "rows")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    text: str
    rows: bytes
    def __init__(self, session: _Optional[bytes] = ..., text: _Optional[str] = ..., rows: _Optional[bytes] = ...) -> None: ...

class BeginRequest(_message.Message):
    __slots__ = ("session", "isolation")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    isolation: Isolation
    def __init__(self, session: _Optional[bytes] = ..., isolation: _Optional[_Union[Isolation, str]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("session", "sequence")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    sequence: int
    def __init__(self, session: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    def __init__(self, session: _Optional[bytes] = ...) -> None: ...

class SessionReply(_message.Message):
    __slots__ = ("failure", "transaction")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    transaction: Transaction
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., transaction: _Optional[_Union[Transaction, str]] = ...) -> None: ...

class OutcomeRequest(_message.Message):
    __slots__ = ("tablespace", "client", "sequence")
    TABLESPACE_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    tablespace: str
    client: bytes
    sequence: int
    def __init__(self, tablespace: _Optional[str] = ..., client: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class OutcomeReply(_message.Message):
    __slots__ = ("failure", "committed")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    committed: bool
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., committed: _Optional[bool] = ...) -> None: ...

class NamesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NamesReply(_message.Message):
    __slots__ = ("failure", "names")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., names: _Optional[_Iterable[str]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("tablespace", "table")
    TABLESPACE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    tablespace: str
    table: str
    def __init__(self, tablespace: _Optional[str] = ..., table: _Optional[str] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "type", "nullable")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    NULLABLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: str
    nullable: bool
    def __init__(self, name: _Optional[str] = ..., type: _Optional[str] = ..., nullable: _Optional[bool] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("failure", "name", "columns", "primary_key")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    name: str
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    primary_key: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., name: _Optional[str] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., primary_key: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("tablespace", "table", "keys", "session")
    TABLESPACE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    tablespace: str
    table: str
    keys: bytes
    session: bytes
    def __init__(self, tablespace: _Optional[str] = ..., table: _Optional[str] = ..., keys: _Optional[bytes] = ..., session: _Optional[bytes] = ...) -> None: ...

class GetReply(_message.Message):
    __slots__ = ("failure", "rows")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    rows: bytes
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., rows: _Optional[bytes] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("tablespace", "table", "rows", "only_new", "session")
    TABLESPACE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    ONLY_NEW_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    tablespace: str
    table: str
    rows: bytes
    only_new: bool
    session: bytes
    def __init__(self, tablespace: _Optional[str] = ..., table: _Optional[str] = ..., rows: _Optional[bytes] = ..., only_new: _Optional[bool] = ..., session: _Optional[bytes] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("tablespace", "table", "keys", "session")
    TABLESPACE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    tablespace: str
    table: str
    keys: bytes
    session: bytes
    def __init__(self, tablespace: _Optional[str] = ..., table: _Optional[str] = ..., keys: _Optional[bytes] = ..., session: _Optional[bytes] = ...) -> None: ...

class CountReply(_message.Message):
    __slots__ = ("failure", "count")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    count: int
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("tablespace", "table", "first", "last", "prefix", "limit")
    TABLESPACE_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    tablespace: str
    table: str
    first: bytes
    last: bytes
    prefix: bytes
    limit: int
    def __init__(self, tablespace: _Optional[str] = ..., table: _Optional[str] = ..., first: _Optional[bytes] = ..., last: _Optional[bytes] = ..., prefix: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...
