"""Kernels to statistics by Mesa's compiler: its GPUs and options, its processes, and a cache of what it printed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from toolchain import board, files, temporary
from toolchain.architecture import AARCH64
from toolchain.backends.mali.cost import shaderdb
from toolchain.backends.mali.cost.emulator import Emulator, Folders, emulator
from toolchain.backends.mali.cost.root import Root
from toolchain.backends.mali.cost.shaderdb import Outcome, Statistics
from toolchain.errors import BuildError, InputError, did_you_mean

# --- GPUs ------------------------------------------------------------------------------------------------------------

# The Mali GPUs that Mesa's compiler makes machine code for, and what is known of their cores.


@dataclass(frozen=True)
class Gpu:
    """One kind of Mali GPU.

    Attributes:
        name: Its short name, as options and board files write it.
        title: Its name in full.
        product: What Mesa calls its kind, in hexadecimal.
        family: Its architecture.
        registers: Registers of 32 bits that a work-item may use before it spills.
        arithmetic: What the compiler's arithmetic cycles are multiplied by: it counts for cores of twice the width on
            the first generations of Bifrost.
        images: Whether its kernels read weights as images.
        lanes: Work-items that run in step.
        judged: Whether the compiler is good enough on it that spills say something of the kernel.
    """

    name: str
    title: str
    product: str
    family: str
    registers: int
    arithmetic: float = 1.0
    images: bool = False
    lanes: int = 1
    judged: bool = True


GPUS = {name: Gpu(name, **table) for name, table in board.gpus().items()}
"""By name: T860 is shown and never judged by, as Mesa's allocator of registers for Midgard is weak."""


def gpu(name: str) -> Gpu:
    """Return a GPU by its name, in letters of any size, with or without `Mali-`.

    Raises:
        InputError: Mesa's compiler is not asked for it.
    """
    short = board.short_gpu(name)
    if short not in GPUS:
        raise InputError(
            f"there is no cost model of the GPU {name!r}",
            details="known GPUs: " + ", ".join(GPUS),
            hint=did_you_mean(short.rpartition("-")[2], list(GPUS)) or "choose one of these",
        )
    return GPUS[short]


# --- options ---------------------------------------------------------------------------------------------------------

# The options that kernels are compiled with: those of the runtime on a board first, then a user's own.

DEFAULT_OPTIONS = ("-cl-std=CL1.2",)
"""As runtime/opencl/build_options.cc has them for every driver that knows OpenCL C 1.2, which all of these GPUs' do."""

_OPTION = re.compile(r"-[A-Za-z][ -~]*")
_MOST_LETTERS = 2000


def check_options(options: Sequence[str]) -> tuple[str, ...]:
    """Return a user's options, each once.

    Raises:
        InputError: One is not a valid option of an OpenCL compiler, or they are too long.
    """
    for option in options:
        if not _OPTION.fullmatch(option):
            raise InputError(
                f"{option!r} is not a valid option of an OpenCL compiler",
                hint="options begin with - and a letter, such as -DN=4",
            )
    if sum(map(len, options)) > _MOST_LETTERS:
        raise InputError(
            f"the compiler's options have more than {_MOST_LETTERS} letters", hint="define macros in the source"
        )
    return tuple(dict.fromkeys(options))


# --- the cache -------------------------------------------------------------------------------------------------------

# A cache of what the compiler printed: statistics by source, GPU, options and compiler.

_FORMAT = "1"

Keep = Callable[[str, Outcome], None]
"""Takes a source and its outcome."""

Compile = Callable[[Sequence[str], Keep], Sequence[Outcome]]


def cached_outcomes(
    key: str, gpu: Gpu, options: Sequence[str], sources: Sequence[str], compile_: Compile
) -> list[Outcome]:
    """Return the outcome of each kernel; those that the cache lacks are compiled.

    Args:
        key: What the compiler is, as its root says.
        gpu: For which GPU.
        options: Of the compiler.
        sources: OpenCL C of one kernel each.
        compile_: Compiles sources, and passes on the outcome of each as soon as it is there, so that an interrupted run
            can go on.
    """
    folder = files.check_cache() / "mali-cost" / f"{key[:16]}-{gpu.name}"
    by_name = {_cache_name(source, options): source for source in sources}
    cached = {name: outcome for name in by_name if (outcome := _read_cached(folder / name[:2] / name)) is not None}
    missing = [name for name in by_name if name not in cached]

    def keep(source: str, outcome: Outcome) -> None:
        if outcome.statistics is None:  # a failure may be due to memory or time
            return
        name = _cache_name(source, options)
        path = folder / name[:2] / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(InputError):  # a full disk: it is made again
            files.write_atomic(path, json.dumps([outcome.name, dataclasses.asdict(outcome.statistics)]).encode())

    compiled = compile_([by_name[name] for name in missing], keep) if missing else []
    cached |= dict(zip(missing, compiled, strict=True))
    return [cached[_cache_name(source, options)] for source in sources]


def _cache_name(source: str, options: Sequence[str]) -> str:
    return files.sha256_bytes(json.dumps([_FORMAT, source, *options]).encode())


def _read_cached(path: Path) -> Outcome | None:
    try:
        name, table = json.loads(path.read_bytes())
        return Outcome(str(name), Statistics(**table))
    except (OSError, ValueError, TypeError):  # there is no such file, or a power cut left half of it
        return None


# --- the processes ---------------------------------------------------------------------------------------------------

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
