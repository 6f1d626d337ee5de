"""What the compiler said once is not asked again: statistics by source, GPU, options and compiler."""

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
"""Takes a source and what became of it."""

Compile = Callable[[Sequence[str], Keep], Sequence[Outcome]]


def cached_outcomes(
    key: str, gpu: Gpu, options: Sequence[str], sources: Sequence[str], compile_: Compile
) -> list[Outcome]:
    """Return what became of each kernel, compiling those that the cache does not know.

    Args:
        key: What the compiler is, as its root says.
        gpu: For which GPU.
        options: Of the compiler.
        sources: OpenCL C of one kernel each.
        compile_: Compiles sources, and hands over what became of each as soon as it is known: what an interrupted run
            was told is not asked again.
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
    except (OSError, ValueError, TypeError):  # there is none, or a power cut left half of it
        return None


def _write(path: Path, outcome: Outcome) -> None:
    if outcome.statistics is None:  # what failed may have failed for want of memory or time
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(InputError):  # a full disk: it is made again
        files.write_atomic(path, json.dumps([outcome.name, dataclasses.asdict(outcome.statistics)]).encode())
