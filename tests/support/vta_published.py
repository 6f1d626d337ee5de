"""Published times of VTA's layers: tests/data/vta/published.csv says of what and whence."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import Choice
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.devices import Profile
from toolchain.backends.vta.device.simulator import Simulator, Statistics

TABLE = Path(__file__).parents[1] / "data/vta/published.csv"

CLOCK_MHZ = 100.0
CALLS = {56: 4, 28: 3, 14: 3, 7: 3}
"""Of ResNet-18's 3x3 convolutions of stride 1, by their size; it calls each of the others once."""


@dataclass(frozen=True)
class Published:
    """A layer, the tiles that it was measured with, and the milliseconds."""

    network: str
    day: date
    layer: Conv2d
    choice: Choice
    ms: float

    @property
    def calls(self) -> int:
        """Calls in one run of ResNet-18."""
        plain = self.layer.kernel == (3, 3) and self.layer.stride == (1, 1)
        return CALLS[self.layer.height] if plain else 1

    @property
    def vectors(self) -> int:
        """Elements of the output, of 16 channels each."""
        layer = self.layer
        return layer.batch * layer.out_height * layer.out_width * layer.out_channels // 16

    def counted(self, profile: Profile = Profile.PYNQ_Z1) -> Statistics:
        """Return what our own instructions take with the same tiles."""
        return Simulator().cycles(kernels.stream(self.layer, self.choice), profile)

    def modelled_ms(self, profile: Profile = Profile.PYNQ_Z1) -> float:
        """Return the milliseconds of our own instructions with the same tiles."""
        return self.counted(profile).cycles / CLOCK_MHZ / 1e3


def published() -> Iterator[Published]:
    """Yield all layers; a shift by 8 and a clip to 0..127 follow each, as in the programs that were measured."""
    lines = [line for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    for row in csv.DictReader(lines):
        batch, size, inputs, outputs, window, stride, pad, slots = (
            int(row[name]) for name in ("groups", "size", "inputs", "outputs", "window", "stride", "padding", "slots")
        )
        layer = Conv2d(
            batch, size, size, inputs, outputs, (window,) * 2, (stride,) * 2, (pad,) * 4, shift=8, low=0, bias=False
        )
        tile = Choice(1, *map(int, row["tile"].split()), oc_threads=slots, h_threads=slots)
        yield Published(row["network"], date.fromisoformat(row["date"]), layer, tile, float(row["ms"]))


def total(rows: list[tuple[Published, float]]) -> float:
    """Return modelled over measured milliseconds of all calls."""
    return sum(layer.calls * ms for layer, ms in rows) / sum(layer.calls * layer.ms for layer, _ in rows)
