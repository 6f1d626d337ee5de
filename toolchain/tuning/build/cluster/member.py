"""The part that runs inside a Dask worker: a crew of our own processes, and its answers.

Dask's workers import this module by name: no code is sent to them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import platform
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed import WorkerPlugin, get_worker

import toolchain
from toolchain import resources, versions
from toolchain.tuning.build.crew import LocalCrew

# A killed client does not call `leave`. The processes of its crew end after this time, and start again with a new job.
_IDLE_S = 300.0


@functools.cache
def identity() -> dict[str, str]:
    """Return the versions that must be the same everywhere for a candidate to compile to the same bytes."""
    sources = hashlib.sha256()
    paths = (path for path in resources.PACKAGE.rglob("*.py") if resources.DATA not in path.parts)
    for path in sorted(paths):
        sources.update(f"\n{path.relative_to(resources.PACKAGE).as_posix()}\n".encode() + path.read_bytes())
    return {
        **versions.tvm(),
        "ziglang": importlib.metadata.version("ziglang"),
        "toolchain": f"{toolchain.__version__} (sources {sources.hexdigest()[:12]})",
        "machine": platform.machine(),
    }


async def join(name: str, target: str, expected: dict[str, str], dask_worker: Any) -> dict[str, str]:
    """Start a crew in a worker, if its identity is the expected one.

    Args:
        name: Name of the crew.
        target: TVM target as JSON text.
        expected: The expected identity.
        dask_worker: The worker, which Dask passes.

    Returns:
        Its identity.
    """
    if identity() == expected:
        await dask_worker.plugin_add(plugin=Member(target), name=name, catch_errors=False)
    return identity()


async def leave(name: str, dask_worker: Any) -> None:
    """End the crew of a worker."""
    if name in dask_worker.plugins:
        await dask_worker.plugin_remove(name=name)


def compile_candidate(name: str, module: str, timeout_s: float) -> dict[str, Any]:
    """Compile a candidate by the crew of that name in this worker; return an answer for `answers.read`."""
    answer: dict[str, Any] = get_worker().plugins[name].compile(module, timeout_s)
    return answer


class Member(WorkerPlugin):  # type: ignore[misc]
    """A crew in a Dask worker: as many processes as the worker has threads, for a TVM target as JSON text."""

    def __init__(self, target: str) -> None:
        self._target = target

    def setup(self, worker: Any) -> None:
        self._address, self._count = worker.address, worker.state.nthreads
        self._folder = Path(tempfile.mkdtemp(prefix="builder-", dir=worker.local_directory))
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._busy = 0
        self._crew: LocalCrew | None = None
        self._timer = threading.Timer(0.0, self._dismiss)
        with self._running_crew():
            pass

    def teardown(self, worker: Any) -> None:
        del worker
        with self._lock:
            self._timer.cancel()
            self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def compile(self, module: str, timeout_s: float) -> dict[str, Any]:
        """Compile a candidate; if it fails, there are no objects."""
        folder = self._folder / str(next(self._numbers))
        job = {"module": module, "folder": str(folder), "timeout_s": timeout_s}
        with self._running_crew() as crew:
            answer, seconds = crew.ask(job, timeout_s)
        objects = [Path(path).read_bytes() for path in answer.get("objects", ())]
        shutil.rmtree(folder, ignore_errors=True)
        return {"worker": self._address, "objects": objects, "seconds": seconds}

    @contextlib.contextmanager
    def _running_crew(self) -> Iterator[LocalCrew]:
        """Yield the crew, started if necessary; it ends when there was no job for some time."""
        with self._lock:
            self._timer.cancel()
            self._busy += 1
            if self._crew is None:
                self._crew = LocalCrew(self._target, self._folder, self._count).__enter__()
            crew = self._crew
        try:
            yield crew
        finally:
            with self._lock:
                self._busy -= 1
                self._timer.cancel()
                self._timer = threading.Timer(_IDLE_S, self._dismiss)
                self._timer.daemon = True
                self._timer.start()

    def _dismiss(self) -> None:
        with self._lock:
            if not self._busy:
                self._end()

    def _end(self) -> None:
        if self._crew is not None:
            self._crew.__exit__()
            self._crew = None
