"""Kernels to statistics by Mesa's compiler: as many processes as there are cores, several kernels in each."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain import temporary
from toolchain.architecture import AARCH64
from toolchain.backends.mali.cost import shaderdb
from toolchain.backends.mali.cost.cache import Keep
from toolchain.backends.mali.cost.emulator import Emulator, Folders, emulator
from toolchain.backends.mali.cost.gpus import Gpu
from toolchain.backends.mali.cost.root import Root
from toolchain.backends.mali.cost.shaderdb import Outcome
from toolchain.errors import BuildError

_CRASHES = {
    crash.value: crash.name for crash in (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
}
"""Signals by which a program ends because of its input, and not because of memory or because a person ended it."""
_Kept = Callable[[Mapping[str, Outcome]], Mapping[str, Outcome]]
_LIBRARIES = f"usr/lib/{AARCH64.triple}"
_EMPTY = "__kernel void empty(__global float *x) { x[get_global_id(0)] = 0; }\n"
_START_S, _KERNEL_S, _ALONE_S = 600.0, 120.0, 360.0
_MOST_AT_ONCE = 12
_MANY = 8  # for more than that, progress is reported
_ONE = "3 to 10 s"


@dataclass(frozen=True)
class _Run:
    """The output of a process of the compiler, and the signal that it crashed by; empty if it did not."""

    outcomes: Mapping[str, Outcome]
    crash: str = ""


@dataclass(frozen=True)
class _Process:
    """One process of the compiler."""

    root: Root
    gpu: Gpu
    options: tuple[str, ...]
    emulator: Emulator

    def run(self, sources: Sequence[Path], cache: Path, patience: float) -> _Run:
        """Compile files; one at which the compiler ends is missing, and so are those after it.

        Raises:
            BuildError: It was not started, or took longer than `patience` seconds.
        """
        command = [str(self.root.program), *self.options, "--", *map(str, sources)]
        folders = Folders(tuple({path.parent for path in sources}), (cache,))
        result = self.emulator.run(command, self.root.tree, self._environment(cache), folders, patience)
        code = result.returncode
        return _Run(
            shaderdb.read_outcomes(result.stderr.splitlines()), _CRASHES.get(-code if code < 0 else code - 128, "")
        )

    def _environment(self, cache: Path) -> Mapping[str, str]:
        libraries = self.root.tree / _LIBRARIES
        return {
            "LD_LIBRARY_PATH": str(libraries),
            "LD_PRELOAD": str(libraries / "libpanfrost_noop_drm_shim.so"),
            "PAN_GPU_ID": self.gpu.product,
            "RUSTICL_ENABLE": "panfrost",
            "RUSTICL_FEATURES": "fp16",
            "OCL_ICD_VENDORS": str(libraries / "libRusticlOpenCL.so.1"),
            "BIFROST_MESA_DEBUG": "shaderdb",
            "MIDGARD_MESA_DEBUG": "shaderdb",
            "MESA_SHADER_CACHE_DIR": str(cache),
            "HOME": str(cache),
        }


def compile_kernels(
    root: Root,
    gpu: Gpu,
    sources: Sequence[str],
    options: Sequence[str] = (),
    *,
    tell: Callable[[str], None] = lambda _line: None,
    keep: Keep = lambda _source, _outcome: None,
) -> list[Outcome]:
    """Compile kernels.

    Args:
        root: The compiler.
        gpu: For which GPU.
        sources: OpenCL C, of one kernel each.
        options: Of the compiler, such as `-cl-fast-relaxed-math`.
        tell: Gets a line about how many are compiled, after each batch of many.
        keep: Gets each outcome as soon as it is there, from several threads, so that an interrupted run can go on.

    Returns:
        The outcome of each, in order; one that makes the compiler crash says so.
    """
    if not sources:
        return []
    start = _Process(root, gpu, tuple(options), emulator())
    with temporary.folder() as name:
        work, warm = Path(name), _warm(start)
        paths = {str(work / f"{number}.cl"): source for number, source in enumerate(sources)}
        for path, source in paths.items():
            Path(path).write_text(source, encoding="utf-8")

        def kept(finished: Mapping[str, Outcome]) -> Mapping[str, Outcome]:
            for path, outcome in finished.items():
                keep(paths[path], outcome)
            return finished

        outcomes = _all(start, [Path(path) for path in paths], warm, tell, kept)
    return [outcomes[path] for path in paths]


def _all(
    start: _Process, paths: Sequence[Path], warm: Path, tell: Callable[[str], None], store: _Kept
) -> dict[str, Outcome]:
    """Compile files in batches, several at a time, and those without an outcome then once more, alone.

    So no kernel fails because of what was compiled beside it, or for lack of memory while others were.
    """
    processes = len(os.sched_getaffinity(0))
    count = max(1, min(_MOST_AT_ONCE, -(-len(paths) // processes)))
    batches = [paths[first : first + count] for first in range(0, len(paths), count)]
    outcomes: dict[str, Outcome] = {}
    if len(paths) >= _MANY:
        tell(f"{len(paths)} kernels for {start.gpu.name}: once, {_ONE} of a core each, {processes} at a time")
    with ThreadPoolExecutor(processes) as pool:
        for finished in pool.map(lambda batch: store(_part(start, batch, warm)), batches):
            outcomes |= finished
            if len(paths) >= _MANY:
                tell(f"Mesa's compiler: {len(outcomes)} of {len(paths)} kernels for {start.gpu.name}")
    for path in paths:
        if str(path) not in outcomes:
            outcomes |= store({str(path): _alone(start, path, warm)})
    return outcomes


def _part(start: _Process, paths: Sequence[Path], warm: Path) -> dict[str, Outcome]:
    """Compile files in one process, and in another those behind one that crashes it; returns those with an outcome."""
    outcomes: dict[str, Outcome] = {}
    remaining = list(paths)
    while remaining:
        try:
            outcomes |= _run(start, remaining, warm, _KERNEL_S * len(remaining)).outcomes
        except BuildError:  # each of them may be the cause
            return outcomes
        remaining = [path for path in remaining if str(path) not in outcomes][1:]
    return outcomes


def _alone(start: _Process, path: Path, warm: Path) -> Outcome:
    try:
        ended = _run(start, [path], warm, _ALONE_S)
    except BuildError as fault:
        return Outcome(fault=fault.message, answered=False)
    if ended.crash and str(path) not in ended.outcomes:  # it crashed twice on this kernel
        return Outcome(fault=f"Mesa's compiler crashes on it ({ended.crash})")
    return ended.outcomes.get(str(path), Outcome(fault="the compiler ended unexpectedly", answered=False))


def _run(start: _Process, paths: Sequence[Path], warm: Path, patience: float) -> _Run:
    cache = paths[0].with_suffix(".cache")
    shutil.copytree(warm, cache)  # with what it compiled before, the compiler would print nothing
    try:
        return start.run(paths, cache, patience)
    finally:
        shutil.rmtree(cache)


def _warm(start: _Process) -> Path:
    """Return a cache with what every start for a GPU needs, made once: it saves 20 s of each.

    Raises:
        BuildError: The compiler does not work here.
    """
    folder = start.root.folder / "warm" / start.gpu.product
    if folder.is_dir():
        return folder
    folder.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".warm-", dir=folder.parent) as name:
        cache, source = Path(name) / "cache", Path(name) / "empty.cl"
        cache.mkdir()
        source.write_text(_EMPTY, encoding="utf-8")
        # Without a user's options, which may be wrong.
        outcome = (
            replace(start, options=())
            .run([source], cache, _START_S)
            .outcomes.get(str(source), Outcome(fault="it ended unexpectedly"))
        )
        if outcome.statistics is None:
            raise BuildError(f"Mesa's compiler does not work here for {start.gpu.name}", details=outcome.fault)
        if not folder.is_dir():  # another process may have been faster
            try:
                cache.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder
