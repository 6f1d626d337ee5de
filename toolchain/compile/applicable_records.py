"""The tuning records that a build may apply: the user's, and those that come with the toolchain."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tvm

from toolchain import state
from toolchain.backends.base import Backend
from toolchain.board import boards_folder
from toolchain.bundle import RECORDS
from toolchain.compile.request import BuildRequest
from toolchain.errors import InputError
from toolchain.records import SHIPPED, Key, RecordFile, RecordFilter, Records, default_path
from toolchain.records.apply import Applied, apply
from toolchain.records.metaschedule import target_table

# Shipped records also say how a kernel is cut into parts, and the best for two cores leaves most of sixteen idle. So
# a board has at most this many times the cores that they were measured with.
_MAX_CORE_RATIO = 2


@dataclass(frozen=True)
class RecordSources:
    """Where a build looks for tuning records."""

    user: Records | None = None  # the user's records; None to apply none
    # Those that come with the toolchain, for kernels without one of the user's; None to apply none
    shipped: Records | None = None

    def apply(self, lowered: tvm.IRModule, request: BuildRequest) -> Applied:
        """Apply the best fitting records to a lowered module."""
        if self.user is None and self.shipped is None:
            return Applied(lowered)
        records = self.user or Records.collect()
        return apply(lowered, request.backend, records, shipped=self.shipped, key=matching_key(request, records))


def record_key(
    backend: Backend,
    *,
    emulated: bool = False,
    modelled: str = "",
    threads: int = 0,
    options: Mapping[str, int] | None = None,
) -> Key:
    """Return the key of a board's records.

    Args:
        backend: The board's.
        emulated: Whether the times are an emulator's.
        modelled: The device and the model that computed the times; empty if they were measured.
        threads: Threads that kernels run on; 0 for the number in the board file.
        options: How candidates are measured; None for the defaults.
    """
    board = backend.board
    # Only a number that differs from the board file's is part of a key.
    other_threads = 0 if threads == (board.threads or board.cores) else threads
    table = target_table(backend.target)
    return Key.of(table, emulated=emulated, modelled=modelled, threads=other_threads, options=options)


def requested_key(request: BuildRequest) -> Key:
    """Return the key of the records that a build requests: measured with default options, by any version of a model."""
    return record_key(request.backend, emulated=request.emulated, modelled=request.modelled_as, threads=request.threads)


def matching_key(request: BuildRequest, records: Records) -> Key:
    """Return the key of the records that a build applies.

    Without records measured with default options, the newest others count. A model's records are kept by the version
    of its compiler, and a build accepts any: those of the newest version count first.
    """
    requested = requested_key(request)
    if requested in records.keys:
        return requested
    newest = {key: moment for key, moment in records.newest().items() if key.in_any_way.of_any_version == requested}
    return max(newest, key=lambda key: (key.version, not key.options, newest[key])) if newest else requested


def options(applied: Applied, *, emulated: bool, modelled: bool = False, threads: int = 0) -> tuple[str, ...]:
    """Return the options of a command line that applies the same records again."""
    of_threads = (f"--threads {threads}",) if threads else ()
    if applied.tuned:
        source = ("--modelled",) if modelled else ("--emulated",) if emulated else ()
        return (f"--records {RECORDS}", *source, *of_threads)
    return (f"--records {SHIPPED}" if applied.shipped else "--no-records", *of_threads)


def has_records(request: BuildRequest) -> bool:
    """Whether the requested source has any tuning records for the board."""
    if request.only_shipped:
        return shipped_records(request.backend) is not None
    records = user_records(request)
    return records is not None and matching_key(request, records) in records.keys


def user_records(request: BuildRequest) -> Records | None:
    """Read the user's tuning records that are to be applied; None if there are none.

    Raises:
        InputError: The file that the user named has none for the board.
    """
    path = _user_file(request)
    if path is None or (request.records is None and not path.exists()):
        return None
    records = RecordFile(path, request.progress).read()
    requested = matching_key(request, records)
    # A file that the user named must have suitable records; the default file may have those of other boards.
    if request.records and requested not in records.keys:
        lines = [f"needed: {_key_text(requested)}", *(f"found:  {_key_text(key)}" for key in records.keys)]
        raise InputError(
            f"{path} has no records for {request.board.name}",
            details="\n".join(lines),
            hint="create some with `toolchain tune MODEL --board BOARD`, or build without them: --no-records",
        )
    return records


def summary(applied: Applied, sources: RecordSources, request: BuildRequest) -> str:
    """Report in one sentence how many kernels use a record of each source; empty if none was to be applied."""
    path = _user_file(request)
    if path is None and not applied.shipped:
        return ""
    folders = " or ".join(str(folder.parent) for folder in state.records_paths(request.board.name))
    if sources.user is None and sources.shipped is None:
        return f"tuning records: none of yours in {folders}, and the toolchain has none for {request.board.name}"
    key = matching_key(request, sources.user or Records.collect())
    marks = {"modelled": f" (by the model of {key.modelled})", "emulated": " (measured on an emulator)"}
    counts = []
    if sources.user is not None and key in sources.user.keys:
        counts.append(f"{applied.tuned} from {path}{marks.get(key.mark, '')}")
    elif sources.user is not None:
        counts.append(f"0 from {path}, which has none for this target")
    if applied.shipped:
        counts.append(f"{applied.shipped} from the toolchain")
    if path is not None and sources.user is None:
        counts.append(f"none of yours in {folders}")
    total = applied.tuned + applied.shipped
    return f"tuning records for {total} of {applied.tasks} kernels: {', '.join(counts)}"


def _user_file(request: BuildRequest) -> Path | None:
    """Return the file of the user's records; None if none are to be applied."""
    if not request.tuned or request.only_shipped:
        return None
    return request.records or default_path(request.board.name)


def _key_text(key: Key) -> str:
    source = {"emulated": ", of an emulator", "modelled": f", of the model of {key.modelled}"}
    threads = f", for {key.threads} thread(s)" if key.threads else ""
    return f"{key.target}, TVM {key.tvm}{source.get(key.mark, '')}{threads}"


def shipped_for(request: BuildRequest) -> Records | None:
    """Read the toolchain's records; if a user asked for only those and there are none, that is reported."""
    records = shipped_records(request.backend) if request.tuned else None
    if records is None and request.only_shipped:
        request.progress(f"the toolchain includes no tuning records for {request.board.name}")
    return records


def shipped_records(backend: Backend) -> Records | None:
    """Return the toolchain's records that suit a board and its number of cores; None if there are none."""
    name = backend.shipped
    path = boards_folder() / "records" / f"{name}.jsonl"
    if not name or not path.is_file():
        return None
    records = RecordFile(path).read()
    cores = backend.board.cores
    suitable = frozenset(
        key for key in records.keys if cores <= _MAX_CORE_RATIO * json.loads(key.target).get("num-cores", 1)
    )
    return records.only(RecordFilter(suitable)) if suitable else None
