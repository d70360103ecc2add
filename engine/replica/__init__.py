"""A state machine kept equal on several machines, for those who build one."""

from engine.replica.confirmed_reads import ConfirmedReads
from engine.replica.contract import ReadRows, Role, Rows, StateMachine
from engine.replica.entries import Request
from engine.replica.replica import Replica
from engine.replica.settings import ReplicaSettings

__all__ = [
    "ConfirmedReads",
    "ReadRows",
    "Replica",
    "ReplicaSettings",
    "Request",
    "Role",
    "Rows",
    "StateMachine",
]
