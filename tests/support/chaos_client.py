"""A tuning run on the farm whose builder now and then hands out a kernel that crashes, or one that never ends."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm

from toolchain import board, devices
from toolchain.backends.cpu.backend import Cpu
from toolchain.farm.boards import BoardRequest
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.native import cross
from toolchain.pipeline import tune
from toolchain.records.tasks import workload_hash
from toolchain.tuning.build import Builder
from toolchain.tuning.measure import Event
from toolchain.tuning.plan import Plan
from toolchain.tuning.trials import Built, Options

EVERY = 17
"""One candidate of so many crashes, and one never ends."""

CODE = """
#include <unistd.h>
int __tvm_ffi_main(void* self, const void* args, int count, void* result) {
#ifdef CRASH
  return *(volatile int*)16;
#else
  for (;;) pause();
#endif
}
"""


def poison(key: str) -> str:
    """Say what a candidate does instead of its work: CRASH or ENDLESS, or nothing of the kind."""
    return {0: "CRASH", 1: "ENDLESS"}.get(int(key, 16) % EVERY, "")


class PoisonedBuilder(Builder):
    """Puts a bad library in the place of some good ones."""

    def __init__(self, target: Any, driver: cross.Cross, folder: Path, **more: Any) -> None:
        super().__init__(target, driver, folder, **more)
        self._bad = {}
        folder = Path(tempfile.mkdtemp(prefix="bad-"))
        (folder / "bad.c").write_text(CODE)
        for kind in ("CRASH", "ENDLESS"):
            self._bad[kind] = folder / f"{kind}.so"
            command = [driver.compiler, "-shared", "-fPIC", f"-D{kind}", "-x", "c", folder / "bad.c"]
            driver.run([*command, "-o", self._bad[kind]], writable=[folder])

    def build(self, modules: Sequence[tvm.IRModule]) -> list[Built]:
        built = super().build(modules)
        for module, artifact in zip(modules, built, strict=True):
            if artifact.library and (kind := poison(workload_hash(module))):
                artifact.library.write_bytes(self._bad[kind].read_bytes())
        return built


class Log:
    """Writes every event of the boards as a line, for whoever looks for hangs afterwards."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("a", buffering=1)

    def __call__(self, event: Event) -> None:
        line = {"time": time.time(), "kind": event.kind, "place": event.place, "detail": event.detail}
        self._stream.write(json.dumps(line) + "\n")


def main() -> None:
    records, log, trials = Path(sys.argv[1]), Log(Path(sys.argv[2])), int(sys.argv[3])
    tune.Builder = PoisonedBuilder
    observe = tune._BoardCounts.observe
    tune._BoardCounts.observe = lambda counts, event: (log(event), observe(counts, event))[1]
    kind = board.load("rpi4").resolved()
    options = Options(number=1, repeat=1, min_repeat_ms=0, timeout_s=3.0)
    request = tune.TuneRequest(
        model=Model("mlp", {}, inputs.Source(None, None, 0)),
        boards=BoardRequest(kind, devices=devices.load_devices(), purpose="chaos"),
        plan=Plan(tuner="evolutionary-random", trials=trials, options=options),
        operators=("matmul",),
        without=Cpu.template_names,
        records=records,
        toolchain="host",
    )
    tune.run(request, lambda line: logging.getLogger("chaos").warning(line), lambda _table: None)


if __name__ == "__main__":
    main()
