"""A run whose folder another process has taken over."""

import pytest

from classgrad import run
from classgrad.checkpoints.lock import Lock, LockLost
from classgrad.runs.record import FILE_NAME
from classgrad.runs.run import write
from streams import blobs


def test_a_process_that_lost_its_lock_writes_no_record(tmp_path):
    record = run(blobs(tasks=1), "finetune", values={"epochs": 1})
    with Lock(tmp_path):
        write(record, tmp_path / "run")
        path = tmp_path / "run" / FILE_NAME
        before = path.stat().st_mtime_ns
        (tmp_path / "lock.json").write_text('{"pid": 1, "host": "other", "started": ""}')
        with pytest.raises(LockLost, match="has taken over"):
            write(record, tmp_path / "run")
    assert path.stat().st_mtime_ns == before
