"""The choices of a tuner: the accelerator's kernels, and those of the CPU beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import tvm

from toolchain.backends.base import CHOICE, LAYER, Cycles
from toolchain.backends.cpu.backend import CpuTemplates
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import Choice, kernel, stream_of
from toolchain.backends.vta.codegen.layers import Conv2d, is_layer
from toolchain.backends.vta.device import simulator
from toolchain.backends.vta.device.devices import Device, Profile
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.errors import BuildError

TEMPLATE = "vta"
"""Name of the template in records and options; without it, the CPU computes everything."""

_MOST_LAYERS = 512  # a tuning run asks for the candidates of each of its layers in every round


@dataclass(frozen=True)
class VtaTemplates:
    """The kernels for one board."""

    device: Device
    cpu: CpuTemplates

    def candidates(self, layer: str) -> list[dict[str, Any]]:
        if not is_layer(layer):
            return self.cpu.candidates(layer)
        conv = Conv2d.from_json(layer)
        # The task stands for layers with and without a residual: what fits with one, fits without.
        if conv.stride == (1, 1) and conv.pool is None:
            conv = replace(conv, residual_shift=0)
        choices = _candidates(conv, self.device.config, self.device.profile)
        return [{"template": TEMPLATE, **choice.document()} for choice in choices]

    def module(self, layer: str, choice: Mapping[str, Any]) -> tvm.IRModule | None:
        if not is_layer(layer):
            return self.cpu.module(layer, choice)
        conv, tile_choice = Conv2d.from_json(layer), self.parse_choice(layer, choice)
        if tile_choice is None or not works(conv, tile_choice, self.device):
            return None
        function = kernel(conv, tile_choice, self.device)
        attributes = {LAYER: layer, CHOICE: json.dumps(dict(choice)), "global_symbol": "main"}
        return tvm.IRModule({"main": function.with_attrs(attributes)})

    def fits(self, layer: str, choice: Mapping[str, Any]) -> bool:
        return self.parse_choice(layer, choice) is not None if is_layer(layer) else self.cpu.fits(layer, choice)

    def parse_choice(self, layer: str, choice: Mapping[str, Any]) -> Choice | None:
        """Read a choice for one of the accelerator's layers; None if it is invalid or does not fit the layer."""
        document = dict(choice)
        if document.pop("template", "") != TEMPLATE:
            return None
        parsed = Choice.of(document)
        return parsed if parsed and kernels.fits(Conv2d.from_json(layer), parsed, self.device.config) else None

    def choice_for(self, layer: str, choice: Mapping[str, Any] | None) -> Choice:
        """Read a choice, or take the likely fastest if it does not fit.

        Raises:
            BuildError: No tiling of the layer fits.
        """
        conv, parsed = Conv2d.from_json(layer), self.parse_choice(layer, choice) if choice else None
        return parsed if parsed and works(conv, parsed, self.device) else likely(conv, self.device)

    def operator(self, layer: str) -> str:
        return "vta_conv2d" if is_layer(layer) else self.cpu.operator(layer)

    def gflop(self, layer: str) -> float:
        return 2 * Conv2d.from_json(layer).macs(self.device.config) / 1e9 if is_layer(layer) else self.cpu.gflop(layer)


@lru_cache(maxsize=_MOST_LAYERS)
def _candidates(layer: Conv2d, config: VtaConfig, profile: Profile) -> tuple[Choice, ...]:
    return tuple(kernels.candidates(layer, config, profile))


def likely(layer: Conv2d, device: Device) -> Choice:
    """Return the likely fastest choice that can be compiled.

    Raises:
        BuildError: No tiling of the layer fits.
    """
    for choice in _candidates(layer, device.config, device.profile):
        if works(layer, choice, device):
            return choice
    raise BuildError(
        "no tile of this convolution fits into the accelerator's memories",
        details=layer.to_json(),
        hint="run everything on the CPU with `--without vta`",
    )


def works(layer: Conv2d, choice: Choice, device: Device) -> bool:
    """Whether a layer compiles with a choice that seems to fit: the filter of candidates only estimates."""
    try:
        stream_of(layer, choice, device)
    except BuildError:
        return False
    return True


@dataclass(frozen=True)
class CycleModel:
    """The cycles that the simulator counts."""

    templates: VtaTemplates

    @property
    def profile(self) -> Profile:
        return self.templates.device.profile

    @property
    def name(self) -> str:
        return self.profile.label

    @property
    def calibration(self) -> str:
        return self.profile.calibration

    @property
    def clock_mhz(self) -> float:
        return self.templates.device.clock_mhz

    def cycles(self, layer: str, choice: Mapping[str, Any] | None) -> Cycles | None:
        if not is_layer(layer):
            return None
        conv, device = Conv2d.from_json(layer), self.templates.device
        stream = stream_of(conv, self.templates.choice_for(layer, choice), device)
        config = device.config
        statistics = simulator.Simulator(config, device.revision).cycles(stream, self.profile)
        return Cycles(statistics.cycles, conv.macs(config), config.batch * config.block * config.block)
