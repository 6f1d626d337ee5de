"""Move a network to blocked layout and let the templates compute its layers.

`insert_stand_ins` finds the layers; each becomes one call of a kernel without code, with weights as they are. Tuning
and tuning records work on these stand-ins. `emit_kernels` replaces them by the chosen kernels and packs the weights as
each kernel reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx

from toolchain.backends.base import EXACT, SPARSE
from toolchain.backends.cpu import kernels as templates
from toolchain.backends.cpu.graph import attention
from toolchain.backends.cpu.graph.match import plan_items
from toolchain.backends.cpu.graph.rewriting import ENTRY, with_blocks, with_functions, with_main
from toolchain.backends.cpu.graph.stand_ins import StandIns, mark_recurrences, name
from toolchain.backends.cpu.graph.write import BlockWriter
from toolchain.backends.cpu.kernels import Choice
from toolchain.backends.cpu.layers import Conv, Dense, ImageLayer, Layer, at_block, from_json, task_of, to_json
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph import patterns
from toolchain.backends.graph.kernels import as_opaque
from toolchain.backends.graph.values import read
from toolchain.models.converters.sequence.recurrence import Recurrence

_PLACE_DTYPE = "int32"
_CALLS = {"relax.call_tir": 0, "relax.call_tir_inplace": 1}


def insert_stand_ins(module: tvm.IRModule, machine: Machine, without: frozenset[str] = frozenset()) -> tvm.IRModule:
    """Rewrite what the templates can compute into calls of kernels without code, on blocked layout.

    Each such kernel has the attributes `LAYER` and `EXACT`. What no template computes stays as it is.

    Args:
        module: A Relax module whose weights are constants; only its function `main` is rewritten.
        machine: The processor.
        without: Names of templates that must not be used.
    """
    # Recurrences are functions of their own already: only their attributes change.
    module = mark_recurrences(module, without)
    builder = relax.BlockBuilder(module)
    kernels = StandIns(builder, float16=machine.float16)

    def rewritten(block: Any) -> Any:
        if not isinstance(block, relax.DataflowBlock):
            return block
        values = read(block, module)
        patterns.replace(values)
        attention.fuse_attention(values, lambda layer: templates.is_covered(layer, without))
        items = plan_items(values, machine, without)
        return BlockWriter(values, items, machine, kernels, without).run()

    main = with_blocks(module[ENTRY], rewritten)
    return _without_uncalled(with_main(builder.get(), main))


def _without_uncalled(module: tvm.IRModule) -> tvm.IRModule:
    """Remove the kernels that no function calls any more."""
    functions = dict(module.functions_items())
    called_: set[Any] = set()

    def note(node: Any) -> None:
        if isinstance(node, tvm.ir.GlobalVar):
            called_.add(node)

    for function in functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, note)
    remaining = {
        variable: function
        for variable, function in functions.items()
        if not isinstance(function, tirx.PrimFunc) or variable in called_ or "global_symbol" in (function.attrs or {})
    }
    return with_functions(module, remaining)


def emit_kernels(module: tvm.IRModule, machine: Machine, choose: Callable[[Layer], Choice]) -> tvm.IRModule:
    """Put real kernels in the place of those without code.

    Args:
        module: What `insert_stand_ins` returned, or what passes made of it.
        machine: The processor.
        choose: Chooses a template and its settings for a layer.
    """
    waiting = {
        variable: str(function.attrs[EXACT])
        for variable, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc) and function.attrs is not None and EXACT in function.attrs
    }
    others = {variable: function for variable, function in module.functions_items() if variable not in waiting}
    builder = relax.BlockBuilder(tvm.IRModule(others, module.attrs, module.global_infos))
    finisher = _KernelEmitter(builder, machine, choose, waiting)
    main = with_blocks(module[ENTRY], finisher.block)
    return _without_uncalled(with_main(builder.get(), main))


@dataclass(frozen=True)
class _Kernel:
    """A function of the module, the layer that it computes, and how."""

    variable: Any
    layer: Layer
    choice: Choice


class _KernelEmitter:
    def __init__(
        self,
        builder: relax.BlockBuilder,
        machine: Machine,
        choose: Callable[[Layer], Choice],
        waiting: Mapping[Any, str],
    ) -> None:
        self._builder, self._machine, self._choose = builder, machine, choose
        self._waiting = {variable: from_json(exact) for variable, exact in waiting.items()}
        self._moving = _moving(self._waiting.values())
        self._kernels: dict[Layer, _Kernel] = {}
        self._packed: dict[tuple[Any, Any], Any] = {}

    def block(self, block: Any) -> Any:
        """Return a block with the calls replaced."""
        bindings = [self._binding(binding) for binding in block.bindings]
        return type(block)(bindings)

    def _binding(self, binding: Any) -> Any:
        call = binding.value
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op) or call.op.name not in _CALLS:
            return binding
        if call.args[0] not in self._waiting:
            return binding
        layer = self._waiting[call.args[0]]
        kernel = self._kernel(layer)
        arguments = list(call.args[1].fields)
        if isinstance(layer, (Conv, Dense, Recurrence)):
            arguments[1] = self._weights(arguments[1], layer, kernel.choice)
        return relax.VarBinding(binding.var, self._call(call, kernel, arguments, layer))

    def _call(self, call: Any, kernel: _Kernel, arguments: list[Any], layer: Layer) -> Any:
        """Return the call of a kernel in the place of its stand-in's; a kernel for several places takes this one."""
        place = []
        if isinstance(layer, ImageLayer) and kernel.layer in self._moving:
            place = [tirx.IntImm(_PLACE_DTYPE, layer.out.first)]
        if call.op.name == "relax.call_tir":
            # A recurrence has a tuple of results, which `relax.op.call_tir` would take apart again.
            operands = [kernel.variable, relax.Tuple([*arguments, *place])]
            return relax.Call(call.op, operands, call.attrs, call.ty_args)
        *inputs, buffer = arguments
        written = len(inputs) + len(place)
        return relax.op.call_tir_inplace(
            kernel.variable, relax.Tuple([*inputs, *place, buffer]), written, list(call.ty_args)
        )

    def _kernel(self, layer: Layer) -> _Kernel:
        """Return the one function for a layer, however often the network calls it, and for all its places."""
        movable = at_block(layer, 0)
        layer = movable if movable in self._moving else layer
        if layer not in self._kernels:
            choice = self._choose(layer)
            # The names are in graph.txt and in profiles.
            prefix = SPARSE if choice.template.startswith("sparse") else ""
            variable = self._builder.add_func(self._function(layer, choice), prefix + name(layer))
            self._kernels[layer] = _Kernel(variable, layer, choice)
        return self._kernels[layer]

    def _function(self, layer: Layer, choice: Choice) -> tirx.PrimFunc:
        if layer not in self._moving:
            return as_opaque(templates.kernel(layer, self._machine, choice), {})
        place = tirx.Var("first", _PLACE_DTYPE)
        function = as_opaque(templates.kernel(at_block(layer, place), self._machine, choice), {})
        *inputs, result = function.params
        return tirx.PrimFunc([*inputs, place, result], function.body, function.ret_type, function.attrs)

    def _weights(self, constant: Any, layer: Conv | Dense | Recurrence, choice: Choice) -> Any:
        # Layers that differ only in where their tensors lie read the same packed weights.
        key = constant, (to_json(task_of(layer)), choice)
        if key not in self._packed:
            packed = templates.pack(layer, self._machine, choice, constant.value.numpy())
            self._packed[key] = relax.const(tvm.runtime.tensor(packed), str(packed.dtype))
        return self._packed[key]


def _moving(layers: Iterable[Layer]) -> frozenset[Layer]:
    """Return the layers, at their first block, that write to several places of a buffer: one kernel computes each.

    The 58 convolutions of 3x3 in DenseNet-121 are four such layers, and LLVM takes a second for a kernel.
    """
    places = Counter(at_block(layer, 0) for layer in layers if isinstance(layer, ImageLayer))
    return frozenset(layer for layer, count in places.items() if count > 1)
