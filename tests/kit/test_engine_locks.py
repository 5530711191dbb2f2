import fcntl
import os
from pathlib import Path

from outlast.engine import locks


def test_a_lock_is_free_when_its_process_is_dead_and_whoever_looks_at_once(tmp_path: Path) -> None:
    held = locks.taken(tmp_path, "w")
    assert held is not None
    assert not locks.is_free(str(held.path))
    os.close(held._descriptor)
    with held.path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert locks.is_free(str(held.path))
