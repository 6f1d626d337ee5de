"""One client at a time for each run of a file: a second one with the same command would do all of its trials again.

A claim is the lock of a small file beside the records. The kernel gives it back when its client ends, however that
ends; what a killed one leaves is an empty promise that the next client takes over and removes.
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
def claimed(records: Path, run: str, owner: Owner) -> Iterator[None]:
    """Claim a run for the time of a block.

    Args:
        records: The file of records.
        run: Name of the run.
        owner: Who claims it; others are told.

    Raises:
        BusyError: Another client has it. What that one records, this one will find in the file: nothing is lost.
        InputError: The folder cannot be written.
    """
    path = records.with_name(f".{records.name}.{run}.claim")
    is_new = not path.parent.exists()
    handle = _taken(path, owner, records)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)  # first, so that who takes it next makes a new one
        os.close(handle)
        if is_new:  # a run that records nothing leaves nothing
            with contextlib.suppress(OSError):
                path.parent.rmdir()


def _taken(path: Path, owner: Owner, records: Path) -> int:
    """Return the claim's file, locked; the path may lead to another one by the time that there is a lock."""
    while True:
        handle = _opened(path, records)
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
        if files.is_at(handle, path):
            os.truncate(handle, 0)
            os.pwrite(handle, owner.line().encode(), 0)
            return handle
        os.close(handle)


def _opened(path: Path, records: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return locks.open_lock(path, locks.mode_beside(records))
    except OSError as fault:
        raise files.unwritable(path, fault) from fault
