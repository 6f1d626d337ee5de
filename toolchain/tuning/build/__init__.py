"""Builds candidates: processes that are reused compile them, and a linker makes shared libraries for the board."""

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

import numpy as np

from toolchain import files, locks
from toolchain.errors import BusyError
from toolchain.native.cross import Cross, Pair
from toolchain.tuning.build.crew import Hire, LocalCrew
from toolchain.tuning.report import BuilderRow
from toolchain.tuning.trials import Built, examples_path

if TYPE_CHECKING:
    import tvm

_LINK_TIMEOUT_S = 60.0
_PATIENCE_S = 60.0  # while another process removes abandoned folders
_PREFIX = "candidates-"


@dataclass(frozen=True)
class _Compiled:
    objects: tuple[Path, ...]
    error: str
    seconds: float


class Builder:
    """Compiles and links candidates, several at a time. Use it in a `with` statement.

    A candidate that crashes the compiler or exceeds its deadline fails alone; its process is replaced.

    Args:
        folder: The folder for the libraries, created if missing; all are removed at the end.
        workers: Processes of this machine that compile; one for each CPU by default.
        hire: Creates another pool of workers instead.
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
        import tvm  # noqa: PLC0415 - a Dask worker imports this room, too, and computes nothing itself

        with contextlib.ExitStack() as stack:
            self._folder = stack.enter_context(_session_folder(self._parent))
            self._crew = stack.enter_context(self._hire(str(tvm.ir.save_json(self._target)), self._folder))
            self._open = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the processes and their jobs, and remove the remaining libraries."""
        self._open.close()

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return self._crew.pids

    @property
    def rows(self) -> tuple[BuilderRow, ...]:
        return self._crew.rows

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        """Build candidates; an error of one does not affect the others.

        Returns:
            One result for each, in their order.

        Raises:
            BuildError: No worker can be started.
        """
        stems = [self._folder / str(next(self._numbers)) for _ in modules]
        for module, stem in zip(modules, stems, strict=True):
            _store_examples(module, examples_path(stem))
        compiled = list(self._crew.map(self._compile, modules, stems))
        built = self._link([stem.with_suffix(".so") for stem in stems], compiled)
        for stem in stems:
            shutil.rmtree(stem, ignore_errors=True)
        return built

    @staticmethod
    def discard(built: Built) -> None:
        if built.library is not None:
            built.library.unlink(missing_ok=True)
            examples_path(built.library).unlink(missing_ok=True)

    def _compile(self, module: tvm.IRModule, stem: Path) -> _Compiled:
        import tvm  # noqa: PLC0415 - as above

        job = {"module": str(tvm.ir.save_json(module)), "folder": os.fspath(stem), "timeout_s": self._timeout_s}
        answer, seconds = self._crew.ask(job, self._timeout_s)
        return _Compiled(tuple(map(Path, answer.get("objects", ()))), answer.get("error", ""), seconds)

    def _link(self, libraries: Sequence[Path], compiled: Sequence[_Compiled]) -> list[Built]:
        """Link the compiled candidates; the time that it takes is divided equally among them."""
        results = list(zip(libraries, compiled, strict=True))
        pairs: list[Pair] = [(library, result.objects) for library, result in results if not result.error]
        start = time.monotonic()
        # One call, since a linker in a container takes long to start.
        faults = iter(self._cross.link_all(pairs, timeout=_LINK_TIMEOUT_S))
        share = (time.monotonic() - start) / max(len(pairs), 1)
        built = []
        for library, result in results:
            if result.error:
                built.append(Built(None, result.error, result.seconds))
            elif (fault := next(faults)) is not None:
                error = f"{fault.message}\n{fault.details}".strip()
                built.append(Built(None, error, result.seconds + share))
            else:
                built.append(Built(library, "", result.seconds + share))
        return built


def _store_examples(module: tvm.IRModule, path: Path) -> None:
    """Write the examples of a candidate's arguments, which its compilation does not need."""
    from toolchain.backends.base import EXAMPLES  # noqa: PLC0415 - as above

    for function in module.functions.values():
        if examples := (function.attrs or {}).get(EXAMPLES):
            np.savez(path, **{str(number): array.numpy() for number, array in examples.items()})


@contextlib.contextmanager
def _session_folder(parent: Path) -> Iterator[Path]:
    """Create a folder in `parent` and remove it at the end, together with the folders of killed processes.

    A folder is locked while its process lives, so an unlocked one is abandoned. The lock of `parent` keeps other
    processes from seeing a new folder before it is locked.
    """
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent):
            for other in parent.glob(f"{_PREFIX}*"):
                with contextlib.suppress(BusyError), _locked(other, 0):
                    shutil.rmtree(other, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            lock = contextlib.ExitStack()
            lock.enter_context(_locked(folder))
    except OSError as fault:
        raise files.unwritable(parent, fault) from fault
    # From here on the folder is locked, so its removal cannot race with another process.
    with lock:
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
