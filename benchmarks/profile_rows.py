"""Whether a profile can be believed: rows against whole runs, the hook's cost, and a delay that is put into a kernel.

    python benchmarks/profile_rows.py [MODEL] [--times 20] [--threads 1] [--realtime]

Builds MODEL for this machine twice, the second time with a kernel that takes 0.2 ms longer: the function of its library
is called by one that waits first. Profiles both so many times, in turns, and prints for each what the rows add up to,
what watching costs, and how much longer the row of the kernel is. The figures need a quiet machine, or real-time
priority that keeps the work of others away (--realtime, for root).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from toolchain import board
from toolchain.bundle import Bundle
from toolchain.compile.request import BuildRequest
from toolchain.device.connected import ConnectedDevice
from toolchain.device.store import Store
from toolchain.devices import Device
from toolchain.models import inputs
from toolchain.models.request import Model
from toolchain.native import cross, programs
from toolchain.pipeline import profile as profiling
from toolchain.pipeline.ab import Side
from toolchain.pipeline.profile import Profile, ProfileRequest
from toolchain.pipeline.source import BundleSource
from toolchain.shell import LocalShell

DELAY_NS = 200_000
_RANDOM = inputs.Source(None, None, 0)
_DELAY = """
#include <time.h>
int real_kernel(void*, void*, int, void*);
int __tvm_ffi_%s(void* self, void* arguments, int count, void* result) {
  struct timespec start, now;
  clock_gettime(CLOCK_MONOTONIC, &start);
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < %d);
  return real_kernel(self, arguments, count, result);
}
"""


@contextmanager
def delayed(kernel: str) -> Iterator[None]:
    """Have libraries linked with a kernel that waits before it computes."""
    link = cross.HostCross.link

    def slower(self: cross.HostCross, output: Path, objects: Sequence[Path]) -> None:
        folder = output.parent
        source, waiting = folder / "delay.c", folder / "delay.o"
        source.write_text(_DELAY % (kernel, DELAY_NS), encoding="utf-8")
        subprocess.run(["cc", "-O2", "-fPIC", "-c", source, "-o", waiting], check=True)
        for file in objects:
            if Path(file).suffix == ".o":
                subprocess.run(["objcopy", "--redefine-sym", f"__tvm_ffi_{kernel}=real_kernel", file], check=True)
        link(self, output, [*objects, waiting])

    with mock.patch.object(cross.HostCross, "link", slower):
        yield


def built(model: str, folder: Path) -> Bundle:
    """Build a model for this machine."""
    kind = board.load("local").resolved()
    request = BuildRequest(Model(model, {}, _RANDOM, {}), kind, lambda _line: None)
    return BundleSource(request).build(folder)


def profiled(release: Bundle, lab: ConnectedDevice, program: programs.Program, request: ProfileRequest) -> Profile:
    """Profile a bundle on this machine."""
    side = Side.of(release)
    return profiling.run(side, _RANDOM, program, lab, request, lambda _line: None)


def main() -> None:
    """Print a line for each pair of profiles, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="mobilenet")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--realtime", action="store_true", help="run what is measured before all else (root)")
    options = parser.parse_args()
    kind = board.load("local").resolved()
    program = programs.build(programs.RUNNER, kind.triple, kind.machine)
    request = ProfileRequest(options.runs, options.threads)
    with tempfile.TemporaryDirectory() as folder, LocalShell() as shell:
        lab = ConnectedDevice(kind, Device("local", "local"), shell, Store(shell, f"{folder}/root"))
        plain = built(options.model, Path(folder) / "plain")
        first = profiled(plain, lab, program, request)
        kernel = steadiest(first)
        print(f"{options.model}: the delay of {DELAY_NS / 1e6:g} ms is in {kernel}", flush=True)
        with delayed(kernel):
            slow = built(options.model, Path(folder) / "slow")
        if slow.digest == plain.digest:
            sys.exit("the delay is not in the library")
        if options.realtime:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
        pairs = [
            (profiled(plain, lab, program, request), profiled(slow, lab, program, request))
            for _ in range(options.times)
        ]
    sys.exit(report(pairs, kernel))


def steadiest(profile: Profile) -> str:
    """Return a kernel that a run calls once, and that takes a while, and always the same."""
    rows = [row for row in profile.rows if row.place and row.calls == 1]
    threshold_ms = max(row.ms for row in rows) / 4
    return min(
        (row for row in rows if row.ms >= threshold_ms), key=lambda row: (row.high_ms - row.low_ms) / row.ms
    ).kernel


def report(pairs: Sequence[tuple[Profile, Profile]], kernel: str) -> int:
    """Print what was found; return how many claims of docs/profile.md do not hold."""
    profiles = [profile for pair in pairs for profile in pair]
    delays = []
    for plain, slow in pairs:
        rows = [next(row.ms for row in profile.rows if row.kernel == kernel) for profile in (plain, slow)]
        delays.append(rows[1] - rows[0])
        print(f"run {plain.plain_ms:.3f} ms  rows {plain.sum_share:.1%}  watching {plain.hook_share:+.2%}  "
              f"delay {delays[-1]:+.4f} ms", flush=True)  # fmt: skip
    good = sum(abs(delay - DELAY_NS / 1e6) <= 0.03 for delay in delays)
    sums = sum(0.95 <= profile.sum_share <= 1.01 for profile in profiles)
    hooks = sum(abs(profile.hook_share) <= 0.02 for profile in profiles)
    print(f"delay within 0.03 ms: {good} of {len(delays)}, median {statistics.median(delays):.4f} ms")
    middle = [statistics.median(getattr(profile, name) for profile in profiles) for name in ("sum_share", "hook_share")]
    print(f"rows 95 to 101 % of a run: {sums} of {len(profiles)}, median {middle[0]:.2%}")
    print(f"watching within 2 %: {hooks} of {len(profiles)}, median {middle[1]:+.2%}")
    return (good < len(delays)) + (sums < len(profiles)) + (hooks < len(profiles))


if __name__ == "__main__":
    main()
