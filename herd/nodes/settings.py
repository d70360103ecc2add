"""How nodes behave: plain values, no components."""

from dataclasses import dataclass

from engine.access.principal import SYSTEM


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Bounds of one node. Times in milliseconds.

    `look_ms` is how often a node looks at what it should run and tells what it does; the auditor
    looks as often. `refresh_ms` is how often all facts are read again, with or without a
    notification. `grace_ms` is how long a replica's node may be away before the replica is replaced
    on another node; time in which the auditor did not look does not count. A node that is creating
    `made_at_once` replicas gets no further one until some are ready. `preference_ms` is how long
    the other replicas wait for the designated leader while there is no leader. Without a designated
    one that is ready, each replica waits `succession_ms` longer than the one before it.
    `patience_ms` is how long a leader that gives way waits for open transactions. `restart_ms` is
    the pause after a replica could not be started, or has stopped for good. `makes_default`: it
    creates the tablespace `default`. `replicas_planned` is how many replicas a node's memory was
    divided for; one that runs more says so. 0: it was not divided. A tablespace that nobody has
    used for `suspend_after_ms` is suspended; 0: never. Those in `never_suspended` are not, either.
    `system` is among them: it holds the users, and while the metadata store is away it could not be
    resumed, so nobody could log in. A caller that asks for a suspended tablespace waits at most
    `resume_ms` for a leader.
    """

    look_ms: int = 500
    refresh_ms: int = 30_000
    grace_ms: int = 60_000
    made_at_once: int = 8
    preference_ms: int = 3_000
    succession_ms: int = 1_000
    patience_ms: int = 1_000
    restart_ms: int = 2_000
    makes_default: bool = True
    replicas_planned: int = 0
    suspend_after_ms: int = 60_000
    resume_ms: int = 5_000
    never_suspended: tuple[str, ...] = (SYSTEM,)
