"""How much faster three boards measure than one, and what the orchestration costs: a kernel that only sleeps.

    toolchain farm up --virtual rpi4=3 && toolchain farm up
    python benchmarks/farm.py [--board rpi4] [--trials 60] [--turns 2] [--json FILE]

One board and all boards take turns in one run. A trial sleeps twice: once to warm up, once to be timed. The time lost
is what the boards were not asleep, so it counts sessions, uploads, SSH and the emulator's own slowness.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from toolchain import board
from toolchain.farm import leases
from toolchain.native import cross
from toolchain.records.results import TensorArg
from toolchain.tuning.measure import MeasurePool, ServerPlace
from toolchain.tuning.trials import Options, Trial

SLEEP_S = 0.5
RUNS = 2  # one to warm up
CODE = """
#include <time.h>
int __tvm_ffi_main(void* self, const void* args, int count, void* result) {
  const struct timespec nap = {NAP_MS / 1000, NAP_MS % 1000 * 1000000L};
  nanosleep(&nap, 0);
  return 0;
}
"""


def sleeper(kind: board.Board, folder: Path, nap_s: float = SLEEP_S) -> Path:
    """Compile the kernel for a board; it sleeps for so many seconds."""
    driver = cross.choose(kind, "host")
    (folder / "sleep.c").write_text(CODE)
    command = [driver.compiler, "-shared", "-fPIC", f"-DNAP_MS={nap_s * 1000:.0f}", "-x", "c", folder / "sleep.c"]
    driver.run([*command, "-o", folder / "sleep.so"])
    return folder / "sleep.so"


def measured(servers: list[ServerPlace], library: Path, trials: int) -> dict[str, Any]:
    """Measure the same trial many times; returns seconds."""
    trial = Trial(library, (TensorArg("float32", (4,)),), "sleep")
    with MeasurePool(servers, Options(number=1, repeat=1, min_repeat_ms=0)) as pool:
        start = time.monotonic()
        results = pool.measure([trial] * trials)
        seconds = time.monotonic() - start
    failed = [result.error for result in results if not result.samples_s]
    if failed:
        raise SystemExit(f"{len(failed)} trials failed: {failed[0]}")
    asleep = trials * RUNS * SLEEP_S / len(servers)
    return {"boards": len(servers), "trials": trials, "seconds": seconds, "lost": 1 - asleep / seconds}


def main() -> None:
    """Take turns and print the speed-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--board", default="rpi4")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kind = board.load(options.board).resolved()
    rows = []
    with tempfile.TemporaryDirectory() as folder, leases.lease(kind.name, who="benchmark") as lease:
        library = sleeper(kind, Path(folder))
        servers = [
            ServerPlace(entry.name, partial(lease.dial, entry.name), entry.key, kind.machine, entry.emulated)
            for entry in lease.boards
        ]
        for _ in range(options.turns):
            rows += [measured(some, library, options.trials) for some in (servers[:1], servers)]
    for row in rows:
        print(
            f"{row['boards']} board(s): {row['trials']} trials in {row['seconds']:.2f} s, {row['lost']:.1%} of it lost"
        )
    single, together = (min(row["seconds"] for row in rows if row["boards"] == n) for n in (1, len(servers)))
    print(f"speed-up {single / together:.2f}")
    if options.json:
        options.json.write_text(json.dumps({"runs": rows, "speed_up": single / together}, indent=2))


if __name__ == "__main__":
    main()
