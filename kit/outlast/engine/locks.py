"""One locked file a worker: when its lock is free, the process is dead, and a restart need not wait for silence.

`flock`, never `fcntl` locks: closing any descriptor of the file would free those. The descriptor is not inheritable, so
that a child process does not keep the lock alive.
"""

import fcntl
import logging
import os
from pathlib import Path

logger = logging.getLogger("outlast.engine")


class LockFile:
    """A lock held until `release` or the death of the process."""

    def __init__(self, folder: Path, worker: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / f"{worker}.lock"
        self._descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        remove(self.path)
        os.close(self._descriptor)


def taken(folder: Path, worker: str) -> LockFile | None:
    """Take a worker's lock; None where no file can be written, as on a read-only disk: then only silence tells."""
    try:
        return LockFile(folder, worker)
    except OSError as error:
        logger.warning(
            "there can be no lock file (%s); the death of this worker is noticed by its silence alone", error
        )
        return None


def is_free(path: str) -> bool:
    """Say whether the process that locked the file is certainly dead. False when nothing can be known."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        # Shared, so that two who look at once do not take each other for the process.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def remove(path: str | Path) -> None:
    Path(path).unlink(missing_ok=True)


def host_id() -> str:
    """Name this machine's current boot: locks of another machine, or of before a reboot, say nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return os.uname().nodename
