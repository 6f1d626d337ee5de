"""The tuning records that a build may apply: the user's own, and those that come with the toolchain."""

from __future__ import annotations

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
from toolchain.records import SHIPPED, Catalog, Key, RecordFile, Records, default_path
from toolchain.records.apply import Applied, apply
from toolchain.records.metaschedule import target_table

_MOST_CORES = 2  # times those that shipped records were measured with


@dataclass(frozen=True)
class Known:
    """What is known.

    Attributes:
        records: The user's records; None to apply none.
        shipped: Those that come with the toolchain, for what `records` does not know; None to apply none.
    """

    records: Catalog | None = None
    shipped: Records | None = None

    def applied(self, lowered: tvm.IRModule, request: BuildRequest) -> Applied:
        """Apply what fits to a lowered module."""
        if self.records is None and self.shipped is None:
            return Applied(lowered)
        records = self.records or Records()
        return apply(lowered, request.backend, records, shipped=self.shipped, key=found_key(request, records))


def record_key(
    backend: Backend,
    *,
    emulated: bool = False,
    modelled: str = "",
    threads: int = 0,
    options: Mapping[str, int] | None = None,
) -> Key:
    """Return what records for a board have to be found under.

    Args:
        backend: The board's.
        emulated: Whether the times are an emulator's.
        modelled: What a model computed them for, and what by.
        threads: Threads that kernels run on; 0 for as many as the board file says.
        options: How candidates are measured; None for the usual way.
    """
    board = backend.board
    given = 0 if threads == (board.threads or board.cores) else threads
    table = target_table(backend.target)
    return Key.of(table, emulated=emulated, modelled=modelled, threads=given, options=options)


def wanted_key(request: BuildRequest) -> Key:
    """Return what the records that a build applies have to be found under, measured in the usual way.

    A model's have no word about what they are by.
    """
    return record_key(request.backend, emulated=request.emulated, modelled=request.modelled_as, threads=request.threads)


def found_key(request: BuildRequest, found: Catalog) -> Key:
    """Return what the records that a build applies are found under.

    Those that were measured in the usual way come first; where there are none, the last others count. A model's are
    there by each compiler that made them, and a build needs none of those: the newest one's are taken.
    """
    wanted = wanted_key(request)
    if wanted in found.keys:
        return wanted
    suited = {key: moment for key, moment in found.newest().items() if key.in_any_way.of_any_version == wanted}
    return max(suited, key=lambda key: (key.version, not key.options, suited[key])) if suited else wanted


def options(applied: Applied, *, emulated: bool, modelled: bool = False, threads: int = 0) -> tuple[str, ...]:
    """Return the options of a command line that applies the same records again."""
    if applied.tuned:
        kind = ("--modelled",) if modelled else ("--emulated",) if emulated else ()
        return (f"--records {RECORDS}", *kind, *([f"--threads {threads}"] if threads else []))
    return (f"--records {SHIPPED}",) if applied.shipped else ("--no-records",)


def has_records(request: BuildRequest) -> bool:
    """Whether there are any tuning records for the board where they are to be taken from."""
    if request.only_shipped:
        return shipped_records(request.backend) is not None
    found = own_records(request)
    return found is not None and found_key(request, found) in found.keys


def own_records(request: BuildRequest) -> Catalog | None:
    """Read the user's tuning records that are to be applied; None if there are none.

    Raises:
        InputError: The records that were asked for are not there.
    """
    path = _own_file(request)
    if path is None or (request.records is None and not path.exists()):
        return None
    found = RecordFile(path, request.tell).catalog()
    key = found_key(request, found)
    if request.records and key not in found.keys:
        raise InputError(
            f"{path} has no records for {request.board.name}",
            details="\n".join([f"needed: {_described(key)}", *(f"found:  {_described(one)}" for one in found.keys)]),
            hint="create some with `toolchain tune MODEL --board BOARD`, or build without them: --no-records",
        )
    return found


def summary(applied: Applied, known: Known, request: BuildRequest) -> str:
    """Say in one sentence how many kernels use a tuning record, and whose; empty where none was to be applied."""
    path = _own_file(request)
    if path is None and not applied.shipped:
        return ""
    if known.records is None and known.shipped is None:
        board = request.board.name
        return f"tuning records: none of yours in {_own_places(request)}, and the toolchain has none for {board}"
    key = found_key(request, known.records or Records())
    marks = {"modelled": f" (by the model of {key.modelled})", "emulated": " (measured on an emulator)"}
    parts = []
    if known.records is not None and key in known.records.keys:
        parts.append(f"{applied.tuned} from {path}{marks.get(key.mark, '')}")
    elif known.records is not None:
        parts.append(f"0 from {path}, which has none for this target")
    if applied.shipped:
        parts.append(f"{applied.shipped} from the toolchain")
    if path is not None and known.records is None:
        parts.append(f"none of yours in {_own_places(request)}")
    total = applied.tuned + applied.shipped
    return f"tuning records for {total} of {applied.tasks} kernels: {', '.join(parts)}"


def _own_file(request: BuildRequest) -> Path | None:
    """Return the file of the user's records; None if none are to be applied."""
    if not request.tuned or request.only_shipped:
        return None
    return request.records or default_path(request.board.name)


def _own_places(request: BuildRequest) -> str:
    return " or ".join(str(place.parent) for place in state.records_paths(request.board.name))


def _described(key: Key) -> str:
    by = {"emulated": ", of an emulator", "modelled": f", of the model of {key.modelled}"}
    threads = f", for {key.threads} thread(s)" if key.threads else ""
    return f"{key.target}, TVM {key.tvm}{by.get(key.mark, '')}{threads}"


def shipped_for(request: BuildRequest) -> Records | None:
    """Read the toolchain's own records; a user who asked for them alone is told where there are none."""
    found = shipped_records(request.backend) if request.tuned else None
    if found is None and request.only_shipped:
        request.tell(f"the toolchain includes no tuning records for {request.board.name}")
    return found


def shipped_records(backend: Backend) -> Records | None:
    """Return the records that come with the toolchain and suit a board, its resolved cores too; None if there are none.

    They also say how the work is cut, and what was best for two cores leaves most of sixteen idle.
    """
    name = backend.shipped
    path = boards_folder() / "records" / f"{name}.jsonl"
    if not name or not path.is_file():
        return None
    known = RecordFile(path).read()
    fitting = [one for one in known.trials if backend.board.cores <= _MOST_CORES * one.target.get("num-cores", 1)]
    return Records(known.workloads, tuple(fitting)) if fitting else None
