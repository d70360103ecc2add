"""An endless log made of ledgers, for those who build on it."""

from engine.log.log import ReplicatedLog
from engine.log.log_writer import LogWriter
from engine.log.position import START, Position, Span
from engine.log.settings import LogSettings

__all__ = ["START", "LogSettings", "LogWriter", "Position", "ReplicatedLog", "Span"]
