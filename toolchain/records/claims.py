"""One client at a time for each run of a file: a second one with the same command would repeat all of its trials.

A claim is a lock on a small file beside the records. The kernel releases it when the client ends, however that happens;
the next client takes over and removes the file of a killed one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from toolchain import files, locks
from toolchain.device.lock import Owner
from toolchain.errors import BusyError

_LONGEST_OWNER = 1000


@contextlib.contextmanager
def claim_run(records: Path, run: str, owner: Owner) -> Iterator[None]:
    """Claim a run for the duration of a block; the error of other clients names the owner.

    Raises:
        BusyError: Another client has claimed it.
        InputError: The folder cannot be written.
    """
    path = records.with_name(f".{records.name}.{run}.claim")
    is_new = not path.parent.exists()
    handle = _lock(path, owner, records)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is released, so that the next client creates a new file
        os.close(handle)
        if is_new:  # succeeds only if the run has recorded nothing
            with contextlib.suppress(OSError):
                path.parent.rmdir()


def _lock(path: Path, owner: Owner, records: Path) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = locks.open_lock(path, locks.mode_beside(records))
        except OSError as fault:
            raise files.unwritable(path, fault) from fault
        if not locks.attempt(handle):
            other = Owner.read(os.pread(handle, _LONGEST_OWNER, 0).decode(errors="replace"))
            holder = locks.holder(handle)
            os.close(handle)
            raise BusyError(
                f"the same search is already running with {records}: {other}",
                details=f"{holder} has it; a second search would repeat its trials",
                hint="wait for it with --wait 1h and continue from its records, or use another --seed",
                owner=str(other),
            )
        if files.is_at(handle, path):  # the former client may have removed the file before it was locked here
            os.truncate(handle, 0)
            os.pwrite(handle, owner.line().encode(), 0)
            return handle
        os.close(handle)
