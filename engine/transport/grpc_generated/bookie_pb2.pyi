from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Status(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATUS_OK: _ClassVar[Status]
    STATUS_NO_SUCH_LEDGER: _ClassVar[Status]
    STATUS_FENCED: _ClassVar[Status]
    STATUS_UNAUTHORIZED: _ClassVar[Status]
    STATUS_READ_ONLY: _ClassVar[Status]
    STATUS_CONFLICT: _ClassVar[Status]
    STATUS_OVERLOADED: _ClassVar[Status]
    STATUS_UNAVAILABLE: _ClassVar[Status]
    STATUS_UNKNOWN: _ClassVar[Status]
    STATUS_DELETED: _ClassVar[Status]
    STATUS_INVALID: _ClassVar[Status]
STATUS_OK: Status
STATUS_NO_SUCH_LEDGER: Status
STATUS_FENCED: Status
STATUS_UNAUTHORIZED: Status
STATUS_READ_ONLY: Status
STATUS_CONFLICT: Status
STATUS_OVERLOADED: Status
STATUS_UNAVAILABLE: Status
STATUS_UNKNOWN: Status
STATUS_DELETED: Status
STATUS_INVALID: Status

class Hello(_message.Message):
    __slots__ = ("format_major", "format_minor")
    FORMAT_MAJOR_FIELD_NUMBER: _ClassVar[int]
    FORMAT_MINOR_FIELD_NUMBER: _ClassVar[int]
    format_major: int
    format_minor: int
    def __init__(self, format_major: _Optional[int] = ..., format_minor: _Optional[int] = ...) -> None: ...

class IdRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("hello", "orders", "echo")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    echo: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ..., echo: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("request", "bookie_id", "append", "confirm", "record", "fence")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    CONFIRM_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    request: int
    bookie_id: str
    append: Append
    confirm: Confirm
    record: Record
    fence: FenceOrder
    def __init__(self, request: _Optional[int] = ..., bookie_id: _Optional[str] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., confirm: _Optional[_Union[Confirm, _Mapping]] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., fence: _Optional[_Union[FenceOrder, _Mapping]] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("ledger_id", "key", "facts", "recovery", "run_count", "runs")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_FIELD_NUMBER: _ClassVar[int]
    RUN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    key: bytes
    facts: LedgerFacts
    recovery: bool
    run_count: int
    runs: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., key: _Optional[bytes] = ..., facts: _Optional[_Union[LedgerFacts, _Mapping]] = ..., recovery: _Optional[bool] = ..., run_count: _Optional[int] = ..., runs: _Optional[bytes] = ...) -> None: ...

class Confirm(_message.Message):
    __slots__ = ("ledger_id", "lac")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    lac: int
    def __init__(self, ledger_id: _Optional[int] = ..., lac: _Optional[int] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("facts", "key")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    facts: LedgerFacts
    key: bytes
    def __init__(self, facts: _Optional[_Union[LedgerFacts, _Mapping]] = ..., key: _Optional[bytes] = ...) -> None: ...

class FenceOrder(_message.Message):
    __slots__ = ("ledger_id", "key")
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    key: bytes
    def __init__(self, ledger_id: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class LedgerFacts(_message.Message):
    __slots__ = ("ledger_id", "ensemble_size", "write_quorum", "ack_quorum", "stripe_entries", "key_hash", "created_ms", "custom", "fragment_first", "ensemble", "closed_last", "closed_length")
    class CustomEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WRITE_QUORUM_FIELD_NUMBER: _ClassVar[int]
    ACK_QUORUM_FIELD_NUMBER: _ClassVar[int]
    STRIPE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CUSTOM_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIRST_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    CLOSED_LAST_FIELD_NUMBER: _ClassVar[int]
    CLOSED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    stripe_entries: int
    key_hash: bytes
    created_ms: int
    custom: _containers.ScalarMap[str, bytes]
    fragment_first: int
    ensemble: _containers.RepeatedScalarFieldContainer[str]
    closed_last: int
    closed_length: int
    def __init__(self, ledger_id: _Optional[int] = ..., ensemble_size: _Optional[int] = ..., write_quorum: _Optional[int] = ..., ack_quorum: _Optional[int] = ..., stripe_entries: _Optional[int] = ..., key_hash: _Optional[bytes] = ..., created_ms: _Optional[int] = ..., custom: _Optional[_Mapping[str, bytes]] = ..., fragment_first: _Optional[int] = ..., ensemble: _Optional[_Iterable[str]] = ..., closed_last: _Optional[int] = ..., closed_length: _Optional[int] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("hello", "replies", "echo")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    replies: _containers.RepeatedCompositeFieldContainer[OrderReply]
    echo: int
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., replies: _Optional[_Iterable[_Union[OrderReply, _Mapping]]] = ..., echo: _Optional[int] = ...) -> None: ...

class OrderReply(_message.Message):
    __slots__ = ("request", "status", "boot", "ledger_id", "first", "last", "lac")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    request: int
    status: Status
    boot: int
    ledger_id: int
    first: int
    last: int
    lac: int
    def __init__(self, request: _Optional[int] = ..., status: _Optional[_Union[Status, str]] = ..., boot: _Optional[int] = ..., ledger_id: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., lac: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("bookie_id", "ledger_id", "first", "last", "bytes_max", "fence_key")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    FENCE_KEY_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    ledger_id: int
    first: int
    last: int
    bytes_max: int
    fence_key: bytes
    def __init__(self, bookie_id: _Optional[str] = ..., ledger_id: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ..., bytes_max: _Optional[int] = ..., fence_key: _Optional[bytes] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("status", "boot", "ledger_id", "lac", "run_count", "runs", "missing", "unknown")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    RUN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    status: Status
    boot: int
    ledger_id: int
    lac: int
    run_count: int
    runs: bytes
    missing: IdRange
    unknown: IdRange
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., boot: _Optional[int] = ..., ledger_id: _Optional[int] = ..., lac: _Optional[int] = ..., run_count: _Optional[int] = ..., runs: _Optional[bytes] = ..., missing: _Optional[_Union[IdRange, _Mapping]] = ..., unknown: _Optional[_Union[IdRange, _Mapping]] = ...) -> None: ...

class WaitLacRequest(_message.Message):
    __slots__ = ("bookie_id", "ledger_id", "above", "timeout_ms")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    ABOVE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    ledger_id: int
    above: int
    timeout_ms: int
    def __init__(self, bookie_id: _Optional[str] = ..., ledger_id: _Optional[int] = ..., above: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class FenceRequest(_message.Message):
    __slots__ = ("bookie_id", "ledger_id", "key")
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    LEDGER_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    ledger_id: int
    key: bytes
    def __init__(self, bookie_id: _Optional[str] = ..., ledger_id: _Optional[int] = ..., key: _Optional[bytes] = ...) -> None: ...

class LacReply(_message.Message):
    __slots__ = ("status", "boot", "lac")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    LAC_FIELD_NUMBER: _ClassVar[int]
    status: Status
    boot: int
    lac: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., boot: _Optional[int] = ..., lac: _Optional[int] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ("bookie_id",)
    BOOKIE_ID_FIELD_NUMBER: _ClassVar[int]
    bookie_id: str
    def __init__(self, bookie_id: _Optional[str] = ...) -> None: ...

class InfoReply(_message.Message):
    __slots__ = ("status", "boot", "cluster_id", "writable", "total_bytes", "free_bytes", "bookie_ids", "taken_entries", "taken_bytes")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BOOKIE_IDS_FIELD_NUMBER: _ClassVar[int]
    TAKEN_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    status: Status
    boot: int
    cluster_id: str
    writable: bool
    total_bytes: int
    free_bytes: int
    bookie_ids: _containers.RepeatedScalarFieldContainer[str]
    taken_entries: int
    taken_bytes: int
    def __init__(self, status: _Optional[_Union[Status, str]] = ..., boot: _Optional[int] = ..., cluster_id: _Optional[str] = ..., writable: _Optional[bool] = ..., total_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., bookie_ids: _Optional[_Iterable[str]] = ..., taken_entries: _Optional[int] = ..., taken_bytes: _Optional[int] = ...) -> None: ...
