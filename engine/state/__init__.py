"""Where a state machine keeps its rows, for those who build one."""

from engine.state.contract import Row, Snapshot, State
from engine.state.memory import MemoryState
from engine.state.rocks import RocksCopy, open_rocks

__all__ = ["MemoryState", "RocksCopy", "Row", "Snapshot", "State", "open_rocks"]
