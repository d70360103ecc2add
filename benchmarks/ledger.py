"""The scenarios of the subject `ledger`, by name, in the order in which they run."""

from collections.abc import Callable
from typing import Final

from benchmarks import ledger_append, ledger_cluster, ledger_memory, ledger_read
from benchmarks.result import Result
from benchmarks.setting import Setting

Scenario = Callable[[Setting], list[Result]]

SCENARIOS: Final[dict[str, Scenario]] = {
    "append-e1-many": ledger_append.e1_many,
    "append-e3-many": ledger_append.e3_many,
    "append-e3-batch": ledger_append.e3_batch,
    "append-e3-one": ledger_append.e3_one,
    "append-e3-one-busy": ledger_append.e3_one_busy,
    "read-sequential": ledger_read.sequential,
    "read-interleaved": ledger_read.interleaved,
    "tail-latency": ledger_read.tail_latency,
    "memory": ledger_memory.memory,
    "append-cluster-many": ledger_cluster.many,
    "append-cluster-one": ledger_cluster.one,
    "append-cluster-many-grpc": ledger_cluster.many_grpc,
    "append-cluster-one-grpc": ledger_cluster.one_grpc,
    "failover": ledger_cluster.failover,
}
