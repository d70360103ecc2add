"""Backups of a whole store: made, checked, and made into a store again."""

from herdbook.archive.backup import Backed, back_up
from herdbook.archive.checking import BackupCheck, check_backup
from herdbook.archive.manifest import BackupFolder, StoreManifest
from herdbook.archive.restore import Restored, restore_cluster, restore_folder

__all__ = [
    "Backed",
    "BackupCheck",
    "BackupFolder",
    "Restored",
    "StoreManifest",
    "back_up",
    "check_backup",
    "restore_cluster",
    "restore_folder",
]
