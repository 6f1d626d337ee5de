"""Candidates in, shared libraries for the board out: compiled by processes that stay, and end alone when they must."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from toolchain import files, locks
from toolchain.errors import BusyError
from toolchain.native.cross import Cross, Pair
from toolchain.tuning.build.crew import Hire, LocalCrew
from toolchain.tuning.report import BuilderRow
from toolchain.tuning.trials import Built

if TYPE_CHECKING:
    import tvm

_LINK_TIMEOUT_S = 60.0
_PATIENCE_S = 60.0  # for those who remove what a killed process left
_PREFIX = "candidates-"


@dataclass(frozen=True)
class _Compiled:
    """What became of one candidate in a worker: its objects, or an error."""

    objects: tuple[Path, ...]
    error: str
    seconds: float


class Builder:
    """Compiles and links candidates, several at a time; to be used in a `with` statement.

    One that crashes the compiler, or is still in it at its deadline, costs a process and fails alone.

    Args:
        target: TVM code-generation target.
        cross: What links the libraries.
        folder: Where they are kept until they are discarded; it is made if need be, and at the end none is left.
        workers: Processes of this machine that compile; as many as it has CPUs by default.
        timeout_s: Seconds that compiling one candidate may take.
        hire: Makes what compiles, instead of those.
    """

    def __init__(
        self,
        target: tvm.target.Target,
        cross: Cross,
        folder: Path,
        workers: int | None = None,
        timeout_s: float = 30.0,
        *,
        hire: Hire | None = None,
    ) -> None:
        self._target = target
        self._cross = cross
        self._parent = folder.resolve()
        count = workers or os.cpu_count() or 1
        self._hire = hire or (lambda target, folder: LocalCrew(target, folder, count))
        self._timeout_s = timeout_s
        self._numbers = itertools.count()
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Start the processes, without waiting until they are ready."""
        import tvm  # noqa: PLC0415 - a Dask worker imports this room, too, and computes nothing itself

        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(_own_folder(self._parent))
            self._crew = stack.enter_context(self._hire(str(tvm.ir.save_json(self._target)), self._folder))
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes, what they do at the moment too, and remove the libraries that are left."""
        self._open.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process IDs of the workers that this machine has."""
        return self._crew.pids

    @property
    def rows(self) -> tuple[BuilderRow, ...]:
        """What each builder did, where there are others than this machine."""
        return self._crew.rows

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Build candidates; what one of them does to the compiler is its own result alone.

        Args:
            modules: Scheduled TIR modules with the function `main`.

        Returns:
            One result for each, in their order.

        Raises:
            BuildError: No worker can be started.
        """
        stems = [self._folder / str(next(self._numbers)) for _ in modules]
        compiled = list(self._crew.map(self._compile, modules, stems))
        built = self._link([stem.with_suffix(".so") for stem in stems], compiled)
        for stem in stems:
            shutil.rmtree(stem, ignore_errors=True)
        return built

    @staticmethod
    def discard(built: Built) -> None:
        """Remove a library that was measured."""
        if built.library is not None:
            built.library.unlink(missing_ok=True)

    def _compile(self, module: tvm.IRModule, stem: Path) -> _Compiled:
        import tvm  # noqa: PLC0415 - as above

        job = {"module": str(tvm.ir.save_json(module)), "folder": os.fspath(stem), "timeout_s": self._timeout_s}
        answer, seconds = self._crew.ask(job, self._timeout_s)
        return _Compiled(tuple(map(Path, answer.get("objects", ()))), answer.get("error", ""), seconds)

    def _link(self, libraries: Sequence[Path], compiled: Sequence[_Compiled]) -> list[Built]:
        """Link what was compiled, and share the time of it out among the candidates."""
        pairs: list[Pair] = [
            (path, one.objects) for path, one in zip(libraries, compiled, strict=True) if not one.error
        ]
        start = time.monotonic()
        faults = iter(self._cross.link_all(pairs, timeout=_LINK_TIMEOUT_S))
        share = (time.monotonic() - start) / max(len(pairs), 1)
        built = []
        for path, one in zip(libraries, compiled, strict=True):
            if one.error:
                built.append(Built(None, one.error, one.seconds))
            elif (fault := next(faults)) is not None:
                text = f"{fault.message}\n{fault.details}".strip()
                built.append(Built(None, text, one.seconds + share))
            else:
                built.append(Built(path, "", one.seconds + share))
        return built


@contextlib.contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """Make a folder in another one, and remove it at the end, with those whose makers were killed.

    A folder is locked while its maker lives. Nobody else looks for abandoned ones before a new one is locked.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent):
            for other in parent.glob(f"{_PREFIX}*"):
                _remove_abandoned(other)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            holding = contextlib.ExitStack()
            holding.enter_context(_locked(folder))
    except OSError as fault:
        raise files.unwritable(parent, fault) from fault
    with holding:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, seconds: float = _PATIENCE_S) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        locks.acquire(descriptor, f"the folder {folder}", seconds)
        yield
    finally:
        os.close(descriptor)


def _remove_abandoned(folder: Path) -> None:
    with contextlib.suppress(BusyError), _locked(folder, 0):
        shutil.rmtree(folder, ignore_errors=True)
