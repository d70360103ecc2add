"""All mutants, in the order in which they are planted."""

from typing import Final

from tests.mutants.access import ACCESS_MUTANTS
from tests.mutants.archive import ARCHIVE_MUTANTS
from tests.mutants.blob_garbage import BLOB_GARBAGE_MUTANTS
from tests.mutants.blob_moving import BLOB_MOVING_MUTANTS
from tests.mutants.blob_names import BLOB_NAME_MUTANTS
from tests.mutants.blob_ways import BLOB_WAY_MUTANTS
from tests.mutants.bookie import APPEND_MUTANTS, FENCE_MUTANTS, READ_MUTANTS
from tests.mutants.broker_leading import BROKER_LEADING_MUTANTS
from tests.mutants.broker_machine import BROKER_MACHINE_MUTANTS
from tests.mutants.broker_rollouts import BROKER_ROLLOUT_MUTANTS
from tests.mutants.broker_scheduling import BROKER_SCHEDULING_MUTANTS
from tests.mutants.broker_time import BROKER_TIME_MUTANTS
from tests.mutants.broker_workers import BROKER_WORKER_MUTANTS
from tests.mutants.client import (
    ENSEMBLE_MUTANTS,
    READER_MUTANTS,
    SPARING_MUTANTS,
    WRITER_MUTANTS,
)
from tests.mutants.election import ELECTION_MUTANTS
from tests.mutants.grpc_wire import GRPC_MUTANTS
from tests.mutants.herd import HERD_MUTANTS
from tests.mutants.herd_capture import HERD_CAPTURE_MUTANTS
from tests.mutants.herd_deltas import HERD_DELTA_MUTANTS
from tests.mutants.herd_reading import HERD_READING_MUTANTS
from tests.mutants.herd_sql import HERD_SQL_MUTANTS
from tests.mutants.herd_staging import HERD_STAGING_MUTANTS
from tests.mutants.herd_storage import HERD_STORAGE_MUTANTS
from tests.mutants.herd_wire import HERD_WIRE_MUTANTS
from tests.mutants.http import HTTP_MUTANTS
from tests.mutants.log import (
    KEEPING_MUTANTS,
    LEADING_MUTANTS,
    ROLLING_MUTANTS,
    TAILING_MUTANTS,
)
from tests.mutants.metadata import METADATA_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.nodes import NODE_MUTANTS
from tests.mutants.operations import OPERATIONS_MUTANTS
from tests.mutants.passing_on import PASSING_ON_MUTANTS
from tests.mutants.placement import PLACEMENT_MUTANTS
from tests.mutants.recovery import RECOVERY_MUTANTS
from tests.mutants.removals import REMOVAL_MUTANTS
from tests.mutants.repair import REPAIR_MUTANTS
from tests.mutants.replica import REPLICA_MUTANTS
from tests.mutants.sessions import SESSION_MUTANTS
from tests.mutants.shares import SHARES_MUTANTS
from tests.mutants.state import STATE_MUTANTS
from tests.mutants.storage import JOURNAL_MUTANTS, UPKEEP_MUTANTS
from tests.mutants.supervisor import SUPERVISOR_MUTANTS
from tests.mutants.survives import SURVIVES_MUTANTS
from tests.mutants.wire import DIALING_MUTANTS, WIRE_MUTANTS

MUTANTS: Final[tuple[Mutant, ...]] = (
    *WRITER_MUTANTS,
    *SPARING_MUTANTS,
    *ENSEMBLE_MUTANTS,
    *READER_MUTANTS,
    *PLACEMENT_MUTANTS,
    *RECOVERY_MUTANTS,
    *METADATA_MUTANTS,
    *SESSION_MUTANTS,
    *APPEND_MUTANTS,
    *FENCE_MUTANTS,
    *READ_MUTANTS,
    *JOURNAL_MUTANTS,
    *UPKEEP_MUTANTS,
    *REPAIR_MUTANTS,
    *SURVIVES_MUTANTS,
    *ELECTION_MUTANTS,
    *REPLICA_MUTANTS,
    *REMOVAL_MUTANTS,
    *STATE_MUTANTS,
    *WIRE_MUTANTS,
    *DIALING_MUTANTS,
    *ACCESS_MUTANTS,
    *SHARES_MUTANTS,
    *HTTP_MUTANTS,
    *GRPC_MUTANTS,
    *LEADING_MUTANTS,
    *ROLLING_MUTANTS,
    *TAILING_MUTANTS,
    *KEEPING_MUTANTS,
    *HERD_MUTANTS,
    *HERD_CAPTURE_MUTANTS,
    *HERD_DELTA_MUTANTS,
    *PASSING_ON_MUTANTS,
    *HERD_READING_MUTANTS,
    *HERD_SQL_MUTANTS,
    *HERD_STAGING_MUTANTS,
    *HERD_STORAGE_MUTANTS,
    *NODE_MUTANTS,
    *SUPERVISOR_MUTANTS,
    *HERD_WIRE_MUTANTS,
    *BLOB_GARBAGE_MUTANTS,
    *OPERATIONS_MUTANTS,
    *ARCHIVE_MUTANTS,
    *BLOB_MOVING_MUTANTS,
    *BLOB_NAME_MUTANTS,
    *BLOB_WAY_MUTANTS,
    *BROKER_MACHINE_MUTANTS,
    *BROKER_LEADING_MUTANTS,
    *BROKER_SCHEDULING_MUTANTS,
    *BROKER_WORKER_MUTANTS,
    *BROKER_ROLLOUT_MUTANTS,
    *BROKER_TIME_MUTANTS,
)
