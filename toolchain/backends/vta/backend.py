"""The backend of boards with a VTA: quantized convolutions are the array's, the rest is the CPU's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import tvm
from tvm import relax

from toolchain.backends.base import EXACT, LAYER, Choice
from toolchain.backends.cpu.backend import Cpu
from toolchain.backends.graph.kernels import as_opaque
from toolchain.backends.vta.candidates import TEMPLATE, CycleModel, VtaTemplates
from toolchain.backends.vta.codegen.kernels import kernel
from toolchain.backends.vta.codegen.layers import Conv2d, is_layer
from toolchain.backends.vta.device.devices import Device, device
from toolchain.backends.vta.network.partition import Partition, partition, resident_bits
from toolchain.errors import InputError


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

    def apply_choices(self, module: tvm.IRModule, choices: Mapping[str, Choice]) -> tvm.IRModule:
        streams = {variable: self._emit(function, choices) for variable, function in module.functions_items()}
        return super().apply_choices(tvm.IRModule(streams, module.attrs, module.global_infos), choices)

    def _emit(self, function: Any, choices: Mapping[str, Choice]) -> Any:
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
