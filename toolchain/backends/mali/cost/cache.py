"""A cache of what the compiler printed: statistics by source, GPU, options and compiler."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from toolchain import files
from toolchain.backends.mali.cost.gpus import Gpu
from toolchain.backends.mali.cost.shaderdb import Outcome, Statistics
from toolchain.errors import InputError

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
    by_name = {_name(source, options): source for source in sources}
    cached = {name: outcome for name in by_name if (outcome := _read(folder / name[:2] / name)) is not None}
    missing = [name for name in by_name if name not in cached]

    def keep(source: str, outcome: Outcome) -> None:
        name = _name(source, options)
        _write(folder / name[:2] / name, outcome)

    compiled = compile_([by_name[name] for name in missing], keep) if missing else []
    cached |= dict(zip(missing, compiled, strict=True))
    return [cached[_name(source, options)] for source in sources]


def _name(source: str, options: Sequence[str]) -> str:
    return files.sha256_bytes(json.dumps([_FORMAT, source, *options]).encode())


def _read(path: Path) -> Outcome | None:
    try:
        name, table = json.loads(path.read_bytes())
        return Outcome(str(name), Statistics(**table))
    except (OSError, ValueError, TypeError):  # there is no such file, or a power cut left half of it
        return None


def _write(path: Path, outcome: Outcome) -> None:
    if outcome.statistics is None:  # a failure may be due to memory or time
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(InputError):  # a full disk: it is made again
        files.write_atomic(path, json.dumps([outcome.name, dataclasses.asdict(outcome.statistics)]).encode())
