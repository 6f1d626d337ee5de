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
    words = [driver.compiler, "-shared", "-fPIC", f"-DNAP_MS={nap_s * 1000:.0f}", "-x", "c", folder / "sleep.c"]
    driver.run([*words, "-o", folder / "sleep.so"])
    return folder / "sleep.so"


def measured(places: list[ServerPlace], library: Path, trials: int) -> dict[str, Any]:
    """Measure the same trial many times; returns seconds."""
    trial = Trial(library, (TensorArg("float32", (4,)),), "sleep")
    with MeasurePool(places, Options(number=1, repeat=1, min_repeat_ms=0)) as pool:
        start = time.monotonic()
        found = pool.measure([trial] * trials)
        seconds = time.monotonic() - start
    failed = [one.error for one in found if not one.samples_s]
    if failed:
        raise SystemExit(f"{len(failed)} trials failed: {failed[0]}")
    asleep = trials * RUNS * SLEEP_S / len(places)
    return {"boards": len(places), "trials": trials, "seconds": seconds, "lost": 1 - asleep / seconds}


def main() -> None:
    """Take turns and print the speed-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--board", default="rpi4")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kind = board.load(given.board).resolved()
    rows = []
    with tempfile.TemporaryDirectory() as folder, leases.lease(kind.name, who="benchmark") as held:
        library = sleeper(kind, Path(folder))
        places = [
            ServerPlace(one.name, partial(held.dial, one.name), one.key, kind.machine, one.emulated)
            for one in held.boards
        ]
        for _ in range(given.turns):
            rows += [measured(some, library, given.trials) for some in (places[:1], places)]
    for one in rows:
        print(
            f"{one['boards']} board(s): {one['trials']} trials in {one['seconds']:.2f} s, {one['lost']:.1%} of it lost"
        )
    alone, together = (min(one["seconds"] for one in rows if one["boards"] == n) for n in (1, len(places)))
    print(f"speed-up {alone / together:.2f}")
    if given.json:
        given.json.write_text(json.dumps({"runs": rows, "speed_up": alone / together}, indent=2))


if __name__ == "__main__":
    main()
