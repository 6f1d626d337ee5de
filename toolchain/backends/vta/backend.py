"""The backend of boards with a VTA: quantized convolutions are the array's, the rest is the CPU's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import tvm
from tvm import relax

from toolchain.backends import base
from toolchain.backends.base import CHOICE, EXACT, LAYER, Cycles
from toolchain.backends.cpu.backend import Cpu, CpuTemplates
from toolchain.backends.graph.kernels import as_opaque
from toolchain.backends.vta.codegen import kernels
from toolchain.backends.vta.codegen.kernels import Choice, kernel, stream_of
from toolchain.backends.vta.codegen.layers import Conv2d, is_layer
from toolchain.backends.vta.device import simulator
from toolchain.backends.vta.device.devices import Device, Profile, device
from toolchain.backends.vta.isa.config import VtaConfig
from toolchain.backends.vta.network.partition import Partition, partition, resident_bits
from toolchain.errors import BuildError, InputError

# --- templates -------------------------------------------------------------------------------------------------------

# The choices of a tuner: the accelerator's kernels, and those of the CPU beside it.

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
        choices = _fitting_choices(conv, self.device.config, self.device.profile)
        return [{"template": TEMPLATE, **choice.document()} for choice in choices]

    def variants(self, layer: str) -> list[dict[str, Any]]:
        # The candidates of the accelerator are all that fit.
        return [] if is_layer(layer) else self.cpu.variants(layer)

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
def _fitting_choices(layer: Conv2d, config: VtaConfig, profile: Profile) -> tuple[Choice, ...]:
    return tuple(kernels.candidates(layer, config, profile))


def likely(layer: Conv2d, device: Device) -> Choice:
    """Return the likely fastest choice that can be compiled.

    Raises:
        BuildError: No tiling of the layer fits.
    """
    for choice in _fitting_choices(layer, device.config, device.profile):
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


# --- the backend -----------------------------------------------------------------------------------------------------


class Vta(Cpu):
    """Boards with the VTA accelerator, whose array multiplies int8 alone."""

    template_names = (TEMPLATE, *Cpu.template_names)
    int8_template = TEMPLATE
    runtime = "vta"
    shipped_by_lanes: ClassVar[Mapping[int, str]] = {}

    @cached_property
    def device(self) -> Device:
        """The accelerator.

        Raises:
            InputError: The board file names none.
        """
        return device(self.board)

    @cached_property
    def target(self) -> tvm.target.Target:
        """The LLVM target of the board's CPU, with the name of its accelerator.

        Raises:
            InputError: LLVM does not know the CPU, the board file names no accelerator, or half precision is asked for.
        """
        _ = self.device
        if self.board.target.float16:
            raise InputError(
                f"the accelerator of {self.board.name} computes in int8, and its CPU in float32 or int8",
                hint="leave --float16 out",
            )
        return tvm.target.Target({**self.host.export(), "device": self.board.target.device})

    @property
    def templates(self) -> VtaTemplates:
        return VtaTemplates(self.device, self.cpu_templates)

    def lower(self, module: tvm.IRModule) -> tvm.IRModule:
        """Rewrite an imported Relax module into calls of kernels: quantized convolutions are the array's.

        Other operations are computed in floats, which hold a quantized network's integers exactly.
        """
        if not self.computes_int8:
            return super().lower(module)
        return self.lowered_floats(self._partition(module).module)

    def unsupported_layers(self, module: tvm.IRModule) -> tuple[str, ...]:
        """Name the convolutions that the CPU computes, each with the cause."""
        if not self.computes_int8:
            return ()
        return tuple(f"{refusal.layer}: {refusal.cause}" for refusal in self._partition(module).refused)

    def _partition(self, module: tvm.IRModule) -> Partition:
        return partition(module, self.device.config)

    def apply_choices(self, module: tvm.IRModule, choices: Mapping[str, base.Choice]) -> tvm.IRModule:
        streams = {variable: self._emit(function, choices) for variable, function in module.functions_items()}
        return super().apply_choices(tvm.IRModule(streams, module.attrs, module.global_infos), choices)

    def _emit(self, function: Any, choices: Mapping[str, base.Choice]) -> Any:
        layer = "" if isinstance(function, relax.Function) else str((function.attrs or {}).get(LAYER, ""))
        if not is_layer(layer):
            return function
        exact = str(function.attrs[EXACT])
        choice = self.templates.choice_for(exact, choices.get(layer))
        emitted = kernel(Conv2d.from_json(exact), choice, self.device, resident_bits(function.attrs))
        return as_opaque(emitted, {LAYER: layer})

    @property
    def machine_model(self) -> CycleModel:
        return CycleModel(self.templates)
