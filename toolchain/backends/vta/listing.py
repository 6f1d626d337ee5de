"""A table of a network's kernels: the choice of each, and the array's modelled cycles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolchain.backends.vta.backend import VtaTemplates
from toolchain.backends.vta.codegen.kernels import Choice, stream_of
from toolchain.backends.vta.codegen.layers import Conv2d
from toolchain.backends.vta.device.devices import Profile, profiles_for
from toolchain.backends.vta.device.simulator import Simulator, Statistics
from toolchain.backends.vta.isa.stream import Stream
from toolchain.report import Table

_HEAD = ("KERNEL", "CALLS", "TILE h w ci co", "SLOTS", "INSTRUCTIONS", "BYTES")


@dataclass(frozen=True)
class Kernel:
    """One kernel.

    Attributes:
        layer: Its layer.
        calls: How many times one run of the network calls it.
        choice: How it is cut into tiles.
        tuned: Whether the choice comes from a tuning record.
        stream: Its instructions.
        statistics: The simulator's counters, by the name of the profile.
        clock_mhz: Clock of the array.
    """

    layer: Conv2d
    calls: int
    choice: Choice
    tuned: bool
    stream: Stream
    statistics: Mapping[str, Statistics]
    clock_mhz: float

    @property
    def name(self) -> str:
        """The layer in a word: window, stride, input, output channels, and the window of maxima."""
        layer = self.layer
        window = "x".join(map(str, layer.kernel))
        shape = f"{layer.height}x{layer.width}x{layer.in_channels}"
        kind = "apart" if layer.alone else "conv"
        maxima = f"-max{'x'.join(map(str, layer.pool.window))}s{layer.pool.stride[0]}" if layer.pool else ""
        return f"{kind}{window}s{layer.stride[0]}-{shape}-{layer.out_channels}{maxima}"

    @property
    def macs(self) -> int:
        """Multiply-adds of one call."""
        return self.layer.macs(self.stream.config)

    def gops(self, profile: str) -> float:
        """Return billions of operations a second; a multiply-add counts as two."""
        return 2 * self.macs / self.statistics[profile].cycles * self.clock_mhz / 1e3

    def utilisation(self, profile: str) -> float:
        """Return the share of the multiply-adds that the array could have done."""
        statistics = self.statistics[profile]
        return self.macs / (statistics.cycles * statistics.macs_per_cycle)

    def document(self) -> dict[str, Any]:
        """Return all but the stream as JSON has it; cycles are modelled."""
        modelled = {
            name: {
                **asdict(statistics),
                "gops": round(self.gops(name), 3),
                "utilisation": round(self.utilisation(name), 4),
            }
            for name, statistics in self.statistics.items()
        }
        general = {"name": self.name, "calls": self.calls, "layer": asdict(self.layer), "tuned": self.tuned}
        sizes = {"instructions": len(self.stream.instructions), "bytes": len(self.stream.encoded())}
        return {**general, "choice": self.choice.document(), **sizes, "clock_mhz": self.clock_mhz, "modelled": modelled}


def kernel(layer: Conv2d, calls: int, chosen: Mapping[str, Any] | None, templates: VtaTemplates) -> Kernel:
    """Compile a layer and count its cycles.

    Args:
        layer: What to compute.
        calls: How often.
        chosen: The choice of a tuning record; None without a record.
        templates: The kernels for the board.

    Raises:
        BuildError: It cannot be computed.
    """
    text, device = layer.to_json(), templates.device
    choice = templates.choice_for(text, chosen)
    stream = stream_of(layer, choice, device)
    simulator = Simulator(device.config, device.revision)
    statistics = {profile.label: simulator.cycles(stream, profile) for profile in profiles_for(device.config)}
    tuned = bool(chosen) and templates.parse_choice(text, chosen or {}) is not None
    return Kernel(layer, calls, choice, tuned, stream, statistics, device.clock_mhz)


def table(kernels: Sequence[Kernel], profiles: Sequence[Profile]) -> Table:
    """Return a row for each kernel: its tiles and sizes, then cycles, GOPS and utilisation by profile."""
    labels = [profile.label for profile in profiles]
    heading = (*_HEAD, *(text for name in labels for text in (f"{name} CYCLES", "GOPS", "USE")))
    return Table([_row(profile, labels) for profile in kernels], heading, numbers=range(4, len(heading)))


def _row(kernel: Kernel, labels: Sequence[str]) -> tuple[str, ...]:
    choice = kernel.choice
    tile = f"{choice.tile_h} {choice.tile_w} {choice.tile_ci} {choice.tile_co}" + (
        "" if kernel.tuned else " (not tuned)"
    )
    general = (kernel.name, str(kernel.calls), tile, f"{choice.oc_threads}x{choice.h_threads}")
    sizes = (str(len(kernel.stream.instructions)), str(len(kernel.stream.encoded())))
    modelled = (
        text
        for name in labels
        for text in (str(kernel.statistics[name].cycles), f"{kernel.gops(name):.2f}", f"{kernel.utilisation(name):.0%}")
    )
    return (*general, *sizes, *modelled)


def total_ms(kernels: Sequence[Kernel], profile: str) -> float:
    """Return the milliseconds of all calls."""
    return sum(kernel.calls * kernel.statistics[profile].cycles / kernel.clock_mhz / 1e3 for kernel in kernels)
