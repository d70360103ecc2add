from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ParentRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PARENT_RULE_ON_SUCCESS: _ClassVar[ParentRule]
    PARENT_RULE_ON_FAILURE: _ClassVar[ParentRule]
    PARENT_RULE_ALWAYS: _ClassVar[ParentRule]

class TaskStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_STATUS_WAITING: _ClassVar[TaskStatus]
    TASK_STATUS_RUNNING: _ClassVar[TaskStatus]
    TASK_STATUS_FINISHED: _ClassVar[TaskStatus]
    TASK_STATUS_ERROR: _ClassVar[TaskStatus]
    TASK_STATUS_DELAYED: _ClassVar[TaskStatus]
    TASK_STATUS_BLOCKED: _ClassVar[TaskStatus]
    TASK_STATUS_PREPARED: _ClassVar[TaskStatus]
    TASK_STATUS_CANCELLED: _ClassVar[TaskStatus]
    TASK_STATUS_LOST: _ClassVar[TaskStatus]

class Acted(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTED_UNSPECIFIED: _ClassVar[Acted]
    ACTED_DONE: _ClassVar[Acted]
    ACTED_ASKED: _ClassVar[Acted]
    ACTED_REPEATED: _ClassVar[Acted]
    ACTED_STALE: _ClassVar[Acted]
    ACTED_NOT_NOW: _ClassVar[Acted]
    ACTED_UNKNOWN: _ClassVar[Acted]
    ACTED_REFUSED: _ClassVar[Acted]

class AttemptEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTEMPT_END_UNSPECIFIED: _ClassVar[AttemptEnd]
    ATTEMPT_END_FINISHED: _ClassVar[AttemptEnd]
    ATTEMPT_END_FAILED: _ClassVar[AttemptEnd]
    ATTEMPT_END_HANDED_BACK: _ClassVar[AttemptEnd]
    ATTEMPT_END_FOR_ANOTHER: _ClassVar[AttemptEnd]
    ATTEMPT_END_INTERRUPTED: _ClassVar[AttemptEnd]
PARENT_RULE_ON_SUCCESS: ParentRule
PARENT_RULE_ON_FAILURE: ParentRule
PARENT_RULE_ALWAYS: ParentRule
TASK_STATUS_WAITING: TaskStatus
TASK_STATUS_RUNNING: TaskStatus
TASK_STATUS_FINISHED: TaskStatus
TASK_STATUS_ERROR: TaskStatus
TASK_STATUS_DELAYED: TaskStatus
TASK_STATUS_BLOCKED: TaskStatus
TASK_STATUS_PREPARED: TaskStatus
TASK_STATUS_CANCELLED: TaskStatus
TASK_STATUS_LOST: TaskStatus
ACTED_UNSPECIFIED: Acted
ACTED_DONE: Acted
ACTED_ASKED: Acted
ACTED_REPEATED: Acted
ACTED_STALE: Acted
ACTED_NOT_NOW: Acted
ACTED_UNKNOWN: Acted
ACTED_REFUSED: Acted
ATTEMPT_END_UNSPECIFIED: AttemptEnd
ATTEMPT_END_FINISHED: AttemptEnd
ATTEMPT_END_FAILED: AttemptEnd
ATTEMPT_END_HANDED_BACK: AttemptEnd
ATTEMPT_END_FOR_ANOTHER: AttemptEnd
ATTEMPT_END_INTERRUPTED: AttemptEnd

class Failure(_message.Message):
    __slots__ = ("code", "message", "retryable", "task_id", "leader")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    retryable: bool
    task_id: int
    leader: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retryable: _Optional[bool] = ..., task_id: _Optional[int] = ..., leader: _Optional[str] = ...) -> None: ...

class ParentTask(_message.Message):
    __slots__ = ("task_id", "index", "rule")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    index: int
    rule: ParentRule
    def __init__(self, task_id: _Optional[int] = ..., index: _Optional[int] = ..., rule: _Optional[_Union[ParentRule, str]] = ...) -> None: ...

class Backoff(_message.Message):
    __slots__ = ("first_ms", "factor_percent", "most_ms", "jitter_percent")
    FIRST_MS_FIELD_NUMBER: _ClassVar[int]
    FACTOR_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MOST_MS_FIELD_NUMBER: _ClassVar[int]
    JITTER_PERCENT_FIELD_NUMBER: _ClassVar[int]
    first_ms: int
    factor_percent: int
    most_ms: int
    jitter_percent: int
    def __init__(self, first_ms: _Optional[int] = ..., factor_percent: _Optional[int] = ..., most_ms: _Optional[int] = ..., jitter_percent: _Optional[int] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("group", "resources")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    group: int
    resources: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[int] = ..., resources: _Optional[_Iterable[str]] = ...) -> None: ...

class TaskSpec(_message.Message):
    __slots__ = ("type", "tenant", "payload", "priority", "due_ms", "deadline_ms", "time_limit_ms", "attempts_max", "at_most_once", "slot", "unique_key", "placement", "backoff", "retention_ms", "parents", "code_pool", "execution", "submitter")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_ONCE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    UNIQUE_KEY_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    CODE_POOL_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    SUBMITTER_FIELD_NUMBER: _ClassVar[int]
    type: str
    tenant: str
    payload: bytes
    priority: int
    due_ms: int
    deadline_ms: int
    time_limit_ms: int
    attempts_max: int
    at_most_once: bool
    slot: str
    unique_key: str
    placement: Placement
    backoff: Backoff
    retention_ms: int
    parents: _containers.RepeatedCompositeFieldContainer[ParentTask]
    code_pool: str
    execution: str
    submitter: str
    def __init__(self, type: _Optional[str] = ..., tenant: _Optional[str] = ..., payload: _Optional[bytes] = ..., priority: _Optional[int] = ..., due_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., time_limit_ms: _Optional[int] = ..., attempts_max: _Optional[int] = ..., at_most_once: _Optional[bool] = ..., slot: _Optional[str] = ..., unique_key: _Optional[str] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., backoff: _Optional[_Union[Backoff, _Mapping]] = ..., retention_ms: _Optional[int] = ..., parents: _Optional[_Iterable[_Union[ParentTask, _Mapping]]] = ..., code_pool: _Optional[str] = ..., execution: _Optional[str] = ..., submitter: _Optional[str] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("tasks", "transaction", "atomic")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    ATOMIC_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskSpec]
    transaction: int
    atomic: bool
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskSpec, _Mapping]]] = ..., transaction: _Optional[int] = ..., atomic: _Optional[bool] = ...) -> None: ...

class Submitted(_message.Message):
    __slots__ = ("task_id", "refusal")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    refusal: Failure
    def __init__(self, task_id: _Optional[int] = ..., refusal: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("failure", "tasks")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    tasks: _containers.RepeatedCompositeFieldContainer[Submitted]
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., tasks: _Optional[_Iterable[_Union[Submitted, _Mapping]]] = ...) -> None: ...

class BeginTransactionRequest(_message.Message):
    __slots__ = ("ttl_ms", "owner")
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ttl_ms: int
    owner: str
    def __init__(self, ttl_ms: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class TransactionRequest(_message.Message):
    __slots__ = ("transaction",)
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    transaction: int
    def __init__(self, transaction: _Optional[int] = ...) -> None: ...

class TransactionReply(_message.Message):
    __slots__ = ("failure", "transaction", "tasks")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TRANSACTION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    transaction: int
    tasks: int
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., transaction: _Optional[int] = ..., tasks: _Optional[int] = ...) -> None: ...

class TaskInfo(_message.Message):
    __slots__ = ("id", "tenant", "type", "status", "attempt", "attempts_max", "created_ms", "started_ms", "finished_ms", "due_ms", "deadline_ms", "priority", "worker_id", "slot", "error", "dead", "payload", "result")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_MAX_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    id: int
    tenant: str
    type: str
    status: TaskStatus
    attempt: int
    attempts_max: int
    created_ms: int
    started_ms: int
    finished_ms: int
    due_ms: int
    deadline_ms: int
    priority: int
    worker_id: str
    slot: str
    error: str
    dead: bool
    payload: bytes
    result: bytes
    def __init__(self, id: _Optional[int] = ..., tenant: _Optional[str] = ..., type: _Optional[str] = ..., status: _Optional[_Union[TaskStatus, str]] = ..., attempt: _Optional[int] = ..., attempts_max: _Optional[int] = ..., created_ms: _Optional[int] = ..., started_ms: _Optional[int] = ..., finished_ms: _Optional[int] = ..., due_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., priority: _Optional[int] = ..., worker_id: _Optional[str] = ..., slot: _Optional[str] = ..., error: _Optional[str] = ..., dead: _Optional[bool] = ..., payload: _Optional[bytes] = ..., result: _Optional[bytes] = ...) -> None: ...

class TasksRequest(_message.Message):
    __slots__ = ("ids", "wait_ms", "with_payload", "with_result")
    IDS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    WITH_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    WITH_RESULT_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    wait_ms: int
    with_payload: bool
    with_result: bool
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., wait_ms: _Optional[int] = ..., with_payload: _Optional[bool] = ..., with_result: _Optional[bool] = ...) -> None: ...

class TasksReply(_message.Message):
    __slots__ = ("failure", "tasks", "more")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    tasks: _containers.RepeatedCompositeFieldContainer[TaskInfo]
    more: bool
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., tasks: _Optional[_Iterable[_Union[TaskInfo, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class IdsRequest(_message.Message):
    __slots__ = ("ids", "by")
    IDS_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    by: str
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., by: _Optional[str] = ...) -> None: ...

class ActedReply(_message.Message):
    __slots__ = ("failure", "answers", "refusals")
    class RefusalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Failure
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Failure, _Mapping]] = ...) -> None: ...
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    answers: _containers.RepeatedScalarFieldContainer[Acted]
    refusals: _containers.MessageMap[int, Failure]
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[Acted, str]]] = ..., refusals: _Optional[_Mapping[int, Failure]] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("task_id", "attempt")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class WorkerLimits(_message.Message):
    __slots__ = ("places", "places_by_type", "groups", "excluded", "resource_limits", "share_percent")
    class PlacesByTypeEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ResourceLimitsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    PLACES_FIELD_NUMBER: _ClassVar[int]
    PLACES_BY_TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_LIMITS_FIELD_NUMBER: _ClassVar[int]
    SHARE_PERCENT_FIELD_NUMBER: _ClassVar[int]
    places: int
    places_by_type: _containers.ScalarMap[str, int]
    groups: _containers.RepeatedScalarFieldContainer[int]
    excluded: _containers.RepeatedScalarFieldContainer[int]
    resource_limits: _containers.ScalarMap[str, int]
    share_percent: int
    def __init__(self, places: _Optional[int] = ..., places_by_type: _Optional[_Mapping[str, int]] = ..., groups: _Optional[_Iterable[int]] = ..., excluded: _Optional[_Iterable[int]] = ..., resource_limits: _Optional[_Mapping[str, int]] = ..., share_percent: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("worker_id", "process_id", "location", "types", "limits", "running", "version")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    process_id: str
    location: str
    types: _containers.RepeatedScalarFieldContainer[str]
    limits: WorkerLimits
    running: _containers.RepeatedCompositeFieldContainer[Attempt]
    version: int
    def __init__(self, worker_id: _Optional[str] = ..., process_id: _Optional[str] = ..., location: _Optional[str] = ..., types: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[WorkerLimits, _Mapping]] = ..., running: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence", "session", "running", "taken_total")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    TAKEN_TOTAL_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    session: int
    running: int
    taken_total: int
    def __init__(self, sequence: _Optional[int] = ..., session: _Optional[int] = ..., running: _Optional[int] = ..., taken_total: _Optional[int] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("task_id", "attempt", "ended", "result", "error", "retry_after_ms", "no_retry", "result_object")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    NO_RETRY_FIELD_NUMBER: _ClassVar[int]
    RESULT_OBJECT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    ended: AttemptEnd
    result: bytes
    error: str
    retry_after_ms: int
    no_retry: bool
    result_object: str
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., ended: _Optional[_Union[AttemptEnd, str]] = ..., result: _Optional[bytes] = ..., error: _Optional[str] = ..., retry_after_ms: _Optional[int] = ..., no_retry: _Optional[bool] = ..., result_object: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("sequence", "session", "completions")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    session: int
    completions: _containers.RepeatedCompositeFieldContainer[Completion]
    def __init__(self, sequence: _Optional[int] = ..., session: _Optional[int] = ..., completions: _Optional[_Iterable[_Union[Completion, _Mapping]]] = ...) -> None: ...

class Config(_message.Message):
    __slots__ = ("sequence", "limits")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    limits: WorkerLimits
    def __init__(self, sequence: _Optional[int] = ..., limits: _Optional[_Union[WorkerLimits, _Mapping]] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("sequence", "ended")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    ended: bool
    def __init__(self, sequence: _Optional[int] = ..., ended: _Optional[bool] = ...) -> None: ...

class WorkerMessage(_message.Message):
    __slots__ = ("hello", "heartbeat", "done", "config", "leaving")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    heartbeat: Heartbeat
    done: Done
    config: Config
    leaving: Leaving
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., done: _Optional[_Union[Done, _Mapping]] = ..., config: _Optional[_Union[Config, _Mapping]] = ..., leaving: _Optional[_Union[Leaving, _Mapping]] = ...) -> None: ...

class WorkerMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[WorkerMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[WorkerMessage, _Mapping]]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session", "lease_ms", "keep", "drop")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    session: int
    lease_ms: int
    keep: _containers.RepeatedCompositeFieldContainer[Attempt]
    drop: _containers.RepeatedCompositeFieldContainer[Attempt]
    def __init__(self, session: _Optional[int] = ..., lease_ms: _Optional[int] = ..., keep: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., drop: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ...) -> None: ...

class Run(_message.Message):
    __slots__ = ("task_id", "attempt", "tenant", "type", "payload", "time_limit_ms", "deadline_ms", "at_most_once", "code_pool", "execution", "payload_object")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    AT_MOST_ONCE_FIELD_NUMBER: _ClassVar[int]
    CODE_POOL_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_OBJECT_FIELD_NUMBER: _ClassVar[int]
    task_id: int
    attempt: int
    tenant: str
    type: str
    payload: bytes
    time_limit_ms: int
    deadline_ms: int
    at_most_once: bool
    code_pool: str
    execution: str
    payload_object: str
    def __init__(self, task_id: _Optional[int] = ..., attempt: _Optional[int] = ..., tenant: _Optional[str] = ..., type: _Optional[str] = ..., payload: _Optional[bytes] = ..., time_limit_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., at_most_once: _Optional[bool] = ..., code_pool: _Optional[str] = ..., execution: _Optional[str] = ..., payload_object: _Optional[str] = ...) -> None: ...

class Assigned(_message.Message):
    __slots__ = ("session", "runs")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    session: int
    runs: _containers.RepeatedCompositeFieldContainer[Run]
    def __init__(self, session: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[Run, _Mapping]]] = ...) -> None: ...

class Interrupt(_message.Message):
    __slots__ = ("session", "attempts", "reason")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    session: int
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    reason: str
    def __init__(self, session: _Optional[int] = ..., attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class Acked(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason", "leader", "final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    leader: str
    final: bool
    def __init__(self, reason: _Optional[str] = ..., leader: _Optional[str] = ..., final: _Optional[bool] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BrokerMessage(_message.Message):
    __slots__ = ("welcome", "assigned", "interrupt", "acked", "refused", "drain")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    INTERRUPT_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    assigned: Assigned
    interrupt: Interrupt
    acked: Acked
    refused: Refused
    drain: Drain
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., assigned: _Optional[_Union[Assigned, _Mapping]] = ..., interrupt: _Optional[_Union[Interrupt, _Mapping]] = ..., acked: _Optional[_Union[Acked, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ...) -> None: ...

class BrokerMessages(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[BrokerMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[BrokerMessage, _Mapping]]] = ...) -> None: ...

class FetchCodeRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class FetchCodeReply(_message.Message):
    __slots__ = ("failure", "data")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    data: bytes
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class AskRequest(_message.Message):
    __slots__ = ("name", "arguments", "number")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: bytes
    number: int
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class AskReply(_message.Message):
    __slots__ = ("failure", "result", "number")
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    failure: Failure
    result: bytes
    number: int
    def __init__(self, failure: _Optional[_Union[Failure, _Mapping]] = ..., result: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class AskRequests(_message.Message):
    __slots__ = ("asks",)
    ASKS_FIELD_NUMBER: _ClassVar[int]
    asks: _containers.RepeatedCompositeFieldContainer[AskRequest]
    def __init__(self, asks: _Optional[_Iterable[_Union[AskRequest, _Mapping]]] = ...) -> None: ...

class AskReplies(_message.Message):
    __slots__ = ("replies", "taken")
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[AskReply]
    taken: int
    def __init__(self, replies: _Optional[_Iterable[_Union[AskReply, _Mapping]]] = ..., taken: _Optional[int] = ...) -> None: ...
