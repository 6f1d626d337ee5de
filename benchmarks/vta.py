"""The ten convolutions of ResNet-18 on the VTA accelerator, tuned; in modelled cycles, which nobody measured.

    python benchmarks/vta.py [--config FILE] [--trials 48] [--json FILE]

For each, with as many images as the array has rows: cycles, billions of operations a second at 100 MHz and share of
the peak with each profile of the model, beside the milliseconds that were published of a Pynq in 2019, whose array has
one row, after a search for tiles of its own. Then the whole network, the seconds that tuning took, and how fast the
simulator computes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import Choice
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.devices import profiles_for
from toolchain.backends.vta.device.simulator import Simulator
from toolchain.backends.vta.isa import config
from toolchain.backends.vta.isa.config import DEFAULT, VtaConfig
from toolchain.backends.vta.isa.stream import Stream
from toolchain.errors import BuildError

CLOCK_HZ = 100e6


@dataclass(frozen=True)
class Seed:
    """A task of the tutorial: size, channels, window, stride, calls in the network, and published milliseconds."""

    size: int
    channels: int
    filters: int
    window: int
    stride: int
    calls: int
    ms: float

    def layer(self, images: int) -> Conv2d:
        """Return its convolution of some images: a shift by 8 and a clip to 0..127 follow."""
        size, pad = self.size, self.window // 2
        return Conv2d(
            images, size, size, self.channels, self.filters, (self.window,) * 2, (self.stride,) * 2, (pad,) * 4,
            shift=8, low=0, bias=False,
        )  # fmt: skip


SEEDS = (
    Seed(56, 64, 64, 3, 1, 4, 5.70),
    Seed(56, 64, 128, 1, 2, 1, 1.35),
    Seed(56, 64, 128, 3, 2, 1, 2.97),
    Seed(28, 128, 128, 3, 1, 3, 5.18),
    Seed(28, 128, 256, 1, 2, 1, 1.03),
    Seed(28, 128, 256, 3, 2, 1, 2.67),
    Seed(14, 256, 256, 3, 1, 3, 4.93),
    Seed(14, 256, 512, 1, 2, 1, 1.08),
    Seed(14, 256, 512, 3, 2, 1, 3.99),
    Seed(7, 512, 512, 3, 1, 3, 7.35),
)
"""In the order of their sizes; the times are those of TopHub's log of 2019: tests/data/vta/published.csv."""


def streams(layer: Conv2d, machine: VtaConfig, trials: int) -> Iterator[tuple[Choice, Stream]]:
    """Yield the likely best ways to compute a layer, each with its instructions."""
    for choice in kernels.candidates(layer, machine)[:trials]:
        try:
            yield choice, kernels.stream(layer, choice, machine)
        except BuildError:  # the filter of candidates is an estimate
            continue


def tuned(seed: Seed, machine: VtaConfig, trials: int) -> dict[str, Any]:
    """Tune a task with each profile that holds for a machine."""
    simulator, layer, start = Simulator(machine), seed.layer(machine.batch), time.monotonic()
    profiles = profiles_for(machine)
    candidates = [(choice, {profile: simulator.cycles(stream, profile) for profile in profiles}) for choice, stream in
             streams(layer, machine, trials)]  # fmt: skip
    row: dict[str, Any] = {**asdict(seed), "candidates": len(candidates), "seconds": time.monotonic() - start}
    for profile in profiles:
        choice, statistics = min(candidates, key=lambda candidate: candidate[1][profile].cycles)
        cycles = statistics[profile].cycles
        row[profile.name.lower()] = {
            "cycles": cycles,
            "gops": 2 * layer.macs() / cycles * CLOCK_HZ / 1e9,
            "utilisation": layer.macs() / (cycles * statistics[profile].macs_per_cycle),
            "choice": choice.document(),
        }
    return row


def speed(layer: Conv2d, machine: VtaConfig) -> float:
    """Return how many millions of multiply-adds a second the simulator computes, the values included."""
    _choice, stream = next(streams(layer, machine, 1))
    random = np.random.default_rng(0)
    arrays = [
        random.integers(-8, 8, shape).astype(dtype) if number < len(stream.buffers) - 1 else np.zeros(shape, dtype)
        for number, (shape, dtype) in enumerate(layer.arguments(machine))
    ]
    simulator = Simulator(machine)
    simulator.run(stream, arrays)
    start = time.monotonic()
    simulator.run(stream, arrays)
    return layer.macs() / (time.monotonic() - start) / 1e6


def rendered(row: dict[str, Any], names: Sequence[str]) -> str:
    """Return the line of a task, with the figures of some profiles."""
    shape = f"{row['size']}x{row['size']} {row['channels']}->{row['filters']} {row['window']}x{row['window']}"
    sides = [row[name] for name in names]
    figures = "  ".join(f"{side['cycles']:>8} {side['gops']:6.2f} {side['utilisation']:5.2f}" for side in sides)
    return f"{shape:22} s{row['stride']}  x{row['calls']}  {figures}  {row['ms']:5.2f} ms  {row['seconds']:5.1f} s"


def main() -> None:
    """Print a line for each task, then the sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="a vta_config.json; the published machine's if not given")
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    machine = config.load(options.config) if options.config else DEFAULT
    names = [profile.name.lower() for profile in profiles_for(machine)]
    print(f"{machine.name}, {machine.batch} at a time")
    heads = "  ".join(f"{name + ' cycles':>8}  GOPS  util" for name in names)
    print(f"{'task':22} modelled: {heads}  Pynq, published  tuning")
    rows = []
    for seed in SEEDS:
        rows.append(tuned(seed, machine, options.trials))
        print(rendered(rows[-1], names), flush=True)
    total = {name: sum(row["calls"] * row[name]["cycles"] for row in rows) for name in names}
    millis = ", ".join(f"{name} {cycles / CLOCK_HZ * 1e3:.1f} ms" for name, cycles in total.items())
    seconds, fast = sum(row["seconds"] for row in rows), speed(SEEDS[0].layer(machine.batch), machine)
    peak = 2 * machine.batch * machine.block**2 * CLOCK_HZ / 1e9
    print(f"ResNet-18's convolutions, modelled at 100 MHz: {millis}; peak {peak} GOPS")
    print(f"tuning took {seconds:.1f} s; the simulator computes {fast:.0f} million multiply-adds a second")
    if options.json:
        options.json.write_text(
            json.dumps(
                {"config": machine.name, "tasks": rows, "cycles": total, "seconds": seconds, "mmac_s": fast}, indent=2
            )
        )


if __name__ == "__main__":
    main()
