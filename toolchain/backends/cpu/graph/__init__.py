"""Move a network to blocked layout and let the templates compute its layers.

`insert_stand_ins` finds the layers; each becomes one call of a kernel without code, with weights as they are. Tuning
and tuning records work on these stand-ins. `emit_kernels` replaces them by the chosen kernels and packs the weights as
each kernel reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from toolchain.backends.cpu.layers import Conv, Dense, Layer, from_json, task_of, to_json
from toolchain.backends.cpu.machine import Machine
from toolchain.backends.graph import patterns
from toolchain.backends.graph.kernels import as_opaque
from toolchain.backends.graph.values import read
from toolchain.models.converters.sequence.recurrence import Recurrence

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
    kernels = StandIns(builder)

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


class _KernelEmitter:
    def __init__(
        self,
        builder: relax.BlockBuilder,
        machine: Machine,
        choose: Callable[[Layer], Choice],
        waiting: Mapping[Any, str],
    ) -> None:
        self._builder, self._machine, self._choose, self._waiting = builder, machine, choose, waiting
        self._made: dict[str, tuple[Any, Layer, Choice]] = {}
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
        kernel, layer, choice = self._kernel(self._waiting[call.args[0]])
        arguments = list(call.args[1].fields)
        if isinstance(layer, (Conv, Dense, Recurrence)):
            arguments[1] = self._weights(arguments[1], layer, choice)
        return relax.VarBinding(
            binding.var, relax.Call(call.op, [kernel, relax.Tuple(arguments)], call.attrs, call.ty_args)
        )

    def _kernel(self, exact: str) -> tuple[Any, Layer, Choice]:
        # The same layer with the same placement is one function, however often the network calls it.
        if exact not in self._made:
            layer = from_json(exact)
            choice = self._choose(layer)
            function = templates.kernel(layer, self._machine, choice)
            # The names are in graph.txt and in profiles.
            prefix = SPARSE if choice.template.startswith("sparse") else ""
            variable = self._builder.add_func(as_opaque(function, {}), prefix + name(layer))
            self._made[exact] = variable, layer, choice
        return self._made[exact]

    def _weights(self, constant: Any, layer: Conv | Dense | Recurrence, choice: Choice) -> Any:
        # Layers that differ only in where their tensors lie read the same packed weights.
        key = constant, (to_json(task_of(layer)), choice)
        if key not in self._packed:
            packed = templates.pack(layer, self._machine, choice, constant.value.numpy())
            self._packed[key] = relax.const(tvm.runtime.tensor(packed), str(packed.dtype))
        return self._packed[key]
