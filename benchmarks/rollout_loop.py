"""What the loop of a roll-out costs by itself: simulated devices, on which a deploy sleeps for as long as one took.

    python benchmarks/rollout_loop.py --devices 1000 --seconds 10 --parallel 8

Nothing is connected to: the figures are of the loop, its threads and its state file alone, and are marked `simulated`.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from toolchain.devices import Device
from toolchain.pipeline.rollout import Loop, Rules, groups
from toolchain.pipeline.rollout.fleet import Fleet
from toolchain.pipeline.rollout.state import Plan, Record, StateFile
from toolchain.pipeline.rollout.threads import Outcome, Visit

OLD, NEW = "a" * 64, "b" * 64
WAVES = ("1", "10%", "100%")


class Sleeping:
    """Deploys that only take their time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def deploy(self, visit: Visit) -> Outcome:
        """Take the time of a deploy."""
        visit.report_release(OLD)
        time.sleep(self.seconds)
        return Outcome(NEW, 12.5)

    def roll_back_device(self, _visit: Visit, before: str) -> Outcome:
        """Take none."""
        return Outcome(before)


def main() -> None:
    """Print a row of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--parallel", type=int, default=8)
    options = parser.parse_args()
    devices = {f"camera-{number:04}": Device("rpi4", f"me@10.0.0.{number}") for number in range(options.devices)}
    assigned = groups.assign(WAVES, devices)
    sizes = [list(assigned.values()).count(group) for group in sorted(set(assigned.values()))]
    ideal = sum(-(-size // options.parallel) for size in sizes) * options.seconds
    records = {name: Record(group) for name, group in assigned.items()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollout.json"
        state = StateFile(path, Plan(NEW, "net", "rpi4", Fleet(devices).digest, WAVES), records)
        wall, cpu = time.perf_counter(), time.process_time()
        Loop(state, Sleeping(options.seconds), Rules(options.parallel), lambda _line: None).run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        size = path.stat().st_size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    each = 1e3 / options.devices
    print(f"simulated: {options.devices} devices, {options.parallel} at once, {options.seconds:g} s each")
    print(f"wall {wall:.1f} s, of which the deploys {ideal:.1f} s: the loop {(wall - ideal) * each:.2f} ms a device")
    print(f"CPU {cpu:.2f} s, {cpu * each:.2f} ms a device")
    print(f"peak memory {peak / 1024:.0f} MiB, state file {size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
