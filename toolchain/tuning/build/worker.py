"""A process that compiles one candidate after the other: `python -m toolchain.tuning.build.worker`.

It reads jobs from standard input and answers on standard output. The first message is the target; the worker answers
it when it is ready. It ends when its input does.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from toolchain import worker
from toolchain.backends.cpu.lowering import PIPELINE
from toolchain.worker import receive, send

_NICER = 5
# When memory runs out, the kernel should end this process before others: only one candidate is lost with it.
_FIRST_TO_GO = "1000"
_ERROR_CHARACTERS = 2000
# The parent ends the worker at the deadline; this is for a parent that was killed.
_GRACE_S = 5.0


def main() -> None:
    jobs, answers = worker.streams()
    os.nice(_NICER)
    worker.leave_no_core()
    with contextlib.suppress(OSError):  # a hardened container shows /proc read-only
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")
    worker.end_with_input(jobs)
    target = tvm.ir.load_json(receive(jobs)["target"])
    send(answers, {})
    while (job := receive(jobs)) is not None:
        send(answers, _answer(job, target))


def _answer(job: dict[str, Any], target: tvm.target.Target) -> dict[str, Any]:
    """Do one job; a timer ends the worker some time after the deadline of the job."""
    signal.setitimer(signal.ITIMER_REAL, job["timeout_s"] + _GRACE_S)
    try:
        objects = _compile(job["module"], target, Path(job["folder"]))
        answer: dict[str, Any] = {"objects": [os.fspath(path) for path in objects]}
    except Exception as fault:  # noqa: BLE001 - passes of the compiler may raise any class
        text = f"{type(fault).__name__}: {fault}".strip()
        answer = {"error": text[-_ERROR_CHARACTERS:]}
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return {**answer, "rss_bytes": pages * resource.getpagesize()}


def _compile(text: str, target: tvm.target.Target, folder: Path) -> Sequence[Path]:
    """Compile a scheduled TIR module into object files in a folder."""
    module = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(text))
    paths: list[Path] = []

    def keep(_output: str, objects: Sequence[str], **_options: Any) -> None:
        paths.extend(map(Path, objects))  # linking is left to the parent, which links all candidates at once

    folder.mkdir()
    pipeline = PIPELINE if target.kind.name == "llvm" else "default"  # as `compile.executable` does it
    executable = tvm.compile(module, target=target, tir_pipeline=pipeline)
    executable.export_library(os.fspath(folder / "unused.so"), fcompile=keep, workspace_dir=os.fspath(folder))
    return paths


if __name__ == "__main__":
    main()
