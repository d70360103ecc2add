"""Every error of the engine.

EngineError
├── InvalidRequest            the call is wrong; it will never succeed as it is
│   ├── EntryTooLarge         split the entry
│   ├── QuorumsInvalid        ensemble >= write quorum >= ack quorum >= 1 does not hold
│   ├── EntryPastEnd          the range goes past what may be read
│   ├── DuplicateEntryId      an explicit id was used before
│   └── SessionFull           no answer may be forgotten: raise the requests' `floor`
├── ExtraMissing              a library is not installed: install what is named
├── FrameInvalid              bytes on a connection are not this protocol's: it is closed
├── NotFound                  looked for, and positively not there
│   ├── NoSuchCluster         nothing of a cluster is under this address: check it
│   ├── NoSuchLedger
│   ├── NoSuchEntry
│   ├── PositionTruncated     the log no longer keeps it: begin with a snapshot
│   └── HistoryMissing        neither a snapshot nor the whole log is there: a replica cannot start
├── Unauthorized              the ledger's password does not match
├── OutcomeUnknown            an append may or may not be stored: read the ledger to know
│   ├── LedgerFenced          another client recovered the ledger: stop writing
│   ├── LedgerClosed          the ledger or the writer is closed
│   ├── AppendFailed          too few bookies acknowledged in time
│   ├── Deposed               another leader has taken the log over: ask it
│   └── RequestForgotten      too long ago to know whether the request was carried out
├── Unavailable               nothing is wrong with the call: retry later
│   ├── NotEnoughBookies      start more bookies, or lower the quorums
│   ├── DeadlineExceeded      no answer in time
│   ├── Overloaded            a queue is full: wait for earlier calls, then retry
│   ├── DiskFull              only the reserve of a disk is free: delete data, or free space
│   ├── RecoveryIncomplete    too few bookies answered to decide the ledger's end
│   ├── NotLeader             another replica leads, or none does yet: ask the one named
│   ├── BookieUnavailable     this bookie cannot be reached or has stopped
│   │   └── AccessRefused     a certificate or the shared secret is not accepted
│   │       └── TooManyTries  too many wrong logins: wait as long as it says
│   └── MetadataUnavailable   the metadata store cannot be reached; a write may have happened
│       └── NoZooKeeper       no server of an address answered: check host and port
├── CannotRead                an entry exists or may exist, and no intact copy answered
├── ReplicaFailed             a replica stopped for good: see why, then start it again
│   ├── StateDiverged         its state is not what the others have: start it from a snapshot
│   ├── StateFailed           its state cannot be written
│   └── LevelTooNew           the log has commands that this program does not know: upgrade it
├── MetadataConflict          somebody changed it first: read again
│   ├── KeyExists
│   └── VersionConflict
└── FolderError               a folder cannot be used as it is; nothing in it was changed
    ├── FolderLocked          another process owns it
    ├── FolderMismatch        it belongs to another cluster, or is not what it should be
    ├── FolderRolledBack      it is older than the metadata store remembers
    ├── FormatTooNew          written by a newer major version: upgrade this program
    └── FolderDamaged         bytes that were synced are not readable any more
"""

import errno
from collections.abc import Iterator


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, its cause, the cause of that, and so on: each once, even if they form a circle."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        yield error
        seen.add(id(error))
        error = error.__cause__


class EngineError(Exception):
    """The root. Catch it to catch everything that the engine raises on purpose."""


class InvalidRequest(EngineError):
    """The call itself is wrong. Do not retry; mend the call. Nothing was stored."""


class EntryTooLarge(InvalidRequest):
    """The entry is over `limits.ENTRY_BYTES_MAX`. Split it. Nothing was stored."""


class QuorumsInvalid(InvalidRequest):
    """`ensemble >= write_quorum >= ack_quorum >= 1` does not hold, or a number is out of range."""


class EntryPastEnd(InvalidRequest):
    """The range ends after the last entry that may be read. Read up to `last_add_confirmed`."""


class DuplicateEntryId(InvalidRequest):
    """An explicit entry id was used before. Choose a higher one. Nothing was stored."""


class SessionFull(InvalidRequest):
    """The session remembers as many results as it can. Raise `floor`; nothing was done."""


class ExtraMissing(EngineError):
    """A library that only some users need is not installed. Install what the message names."""


class FrameInvalid(EngineError):
    """Bytes on a connection are not frames of this protocol, or were damaged on the way.

    The connection is closed; nothing of the message was used. Check what listens at the address.
    """


class NotFound(EngineError):
    """It is positively not there: enough of those who would hold it said so."""


class NoSuchCluster(NotFound):
    """Nothing of a cluster is under this address: check the url's path, or start its first node."""


class NoSuchLedger(NotFound):
    """The metadata store has no such ledger: never created, or deleted."""


class NoSuchEntry(NotFound):
    """Every replica that could hold the entry answered that it holds none."""


class PositionTruncated(NotFound):
    """The log no longer keeps the entries after this position. Begin with a newer snapshot."""


class HistoryMissing(NotFound):
    """A replica can start from a snapshot or from the whole log, and neither is there.

    Bring one of the old replicas back, or restore a backup.
    """


class Unauthorized(EngineError):
    """The ledger's password does not match. Do not retry with the same one."""


class OutcomeUnknown(EngineError):
    """The append may or may not be stored. Recover the ledger and read its end to know."""


class LedgerFenced(OutcomeUnknown):
    """Another client opened the ledger with recovery. This writer is over: open another ledger."""


class LedgerClosed(OutcomeUnknown):
    """The ledger or its writer was closed while the append was pending, or before it."""


class AppendFailed(OutcomeUnknown):
    """Too few bookies acknowledged in time and none could replace them. The writer is over."""


class Deposed(OutcomeUnknown):
    """Another leader has taken the log over. What was under way may be in it or not."""


class RequestForgotten(OutcomeUnknown):
    """The request's session is over, so nobody knows any more whether it was carried out."""


class Unavailable(EngineError):
    """The call is right, the moment is not. Retry later, with backoff."""


class NotEnoughBookies(Unavailable):
    """Fewer bookies are registered and writable than the quorums need. Start more bookies."""


class DeadlineExceeded(Unavailable):
    """No answer before the deadline. A read may be retried at once."""


class Overloaded(Unavailable):
    """A byte-bounded queue is full. Await earlier calls, then retry. Nothing was stored."""


class DiskFull(Unavailable, OSError):
    """Only the reserve of a disk is free, or not even that. Nothing was stored.

    Delete data, which is possible as long as the reserve lasts, or free space on the disk that the
    message names. Then call again; nothing has to be restarted.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno = errno.ENOSPC

    def __str__(self) -> str:
        return str(self.args[0])


class RecoveryIncomplete(Unavailable):
    """Too few bookies answered to decide where the ledger ends; it stays in recovery. Retry."""


class NotLeader(Unavailable):
    """This replica does not lead; `leader` is the address of the one that does, or "" (not known).

    Nothing was stored. Ask that one, or ask again a little later.
    """

    def __init__(self, message: str, leader: str = "") -> None:
        super().__init__(message, leader)
        self.leader = leader

    def __str__(self) -> str:
        return str(self.args[0])


class BookieUnavailable(Unavailable):
    """The bookie cannot be reached, or stopped after a disk error. Others are tried first."""


class AccessRefused(BookieUnavailable):
    """One side does not accept the other's certificate, or its proof of the shared secret.

    Nothing was stored. Give both sides the same secret, and certificates of authorities that they
    know; a retry alone will not help. Other bookies are tried first.
    """


class TooManyTries(AccessRefused):
    """Too many wrong logins came from there: the next one is judged in `wait_s` seconds."""

    def __init__(self, message: str, wait_s: int = 1) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class MetadataUnavailable(Unavailable):
    """The metadata store did not answer. A write may have happened: read again, then decide."""


class NoZooKeeper(MetadataUnavailable):
    """No ZooKeeper server of a url answered. Check host and port, and whether one runs there."""


class CannotRead(EngineError):
    """No intact copy answered, yet the entry is not known to be absent. Retry, or repair."""


class ReplicaFailed(EngineError):
    """The replica stopped for good; its cause says why. Others go on. Start it again."""


class StateDiverged(ReplicaFailed):
    """The state is another than that of the leader. Remove its folder; it comes from a snapshot."""


class StateFailed(ReplicaFailed):
    """The state could not be written. Look at the disk; nothing acknowledged is lost."""


class LevelTooNew(ReplicaFailed):
    """The log has commands of a level that this program does not know. Upgrade it."""


class MetadataConflict(EngineError):
    """A compare-and-set lost. Read the value again and decide anew."""


class KeyExists(MetadataConflict):
    """The key to create is there already."""


class VersionConflict(MetadataConflict):
    """The value's version is another than the one named, or the key is gone."""


class FolderError(EngineError):
    """The folder cannot be used as it is. Nothing in it was changed."""


class FolderLocked(FolderError):
    """Another process owns the folder. Connect to it, or stop it first."""


class FolderMismatch(FolderError):
    """The folder belongs to another cluster or another use. Point to the right folder."""


class FolderRolledBack(FolderError):
    """The folder is older than the metadata store remembers, as after restoring a backup.

    Do not start it: it may have forgotten acknowledged entries. Remove it and let repair
    fill a new one.
    """


class FormatTooNew(FolderError):
    """A newer major version wrote this. Upgrade this program; nothing was changed."""

    @classmethod
    def of(cls, what: str, found: object, known: object) -> "FormatTooNew":
        """The error for something whose format is newer than the one that this program knows."""
        return cls(
            f"{what} has format {found}, this program reads up to {known}: "
            "a newer version of Herdbook wrote it, start that one"
        )


class FolderDamaged(FolderError):
    """Bytes that were synced once cannot be read any more. Run `check`, then repair."""
