"""Large tables of which a network reads rows by number, such as embeddings: each row in bytes, with a scale."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax, te, tirx

from toolchain.backends.cpu.graph.rewriting import ENTRY, with_blocks, with_main
from toolchain.backends.cpu.kernels.packed.weights import rounded
from toolchain.backends.cpu.layers import PACKED
from toolchain.backends.graph.values import name_of

_LARGE = 1 << 16  # numbers of a table that are worth rounding
_BITS, _MATRIX = 8, 2  # bits of a number; axes
_NAME = f"{PACKED}{_BITS}_take"


def round_tables(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module with its large tables rounded; only its function `main` is rewritten."""
    builder = relax.BlockBuilder(module)
    constants: dict[Any, list[Any]] = {}

    def replaced(binding: Any) -> Any:
        if not _reads_large_table(binding.value):
            return binding
        table, ids = binding.value.args
        if table not in constants:
            weights = rounded(table.value.numpy(), _BITS, table.value.shape[1])
            constants[table] = [relax.const(weights.numbers, "int8"), relax.const(weights.scales, "float32")]
        arguments = [*constants[table], ids]
        kernel = builder.add_func(_kernel([argument.ty for argument in arguments]), _NAME)
        return relax.VarBinding(binding.var, relax.op.call_tir(kernel, relax.Tuple(arguments), binding.var.ty))

    main = with_blocks(module[ENTRY], lambda block: type(block)([replaced(binding) for binding in block.bindings]))
    return with_main(builder.get(), main)


def _reads_large_table(call: Any) -> bool:
    if name_of(call) != "take" or not isinstance(call.args[0], tvm.ir.GenericConst) or int(call.attrs.axis or 0):
        return False
    table = call.args[0].value
    return (
        str(table.dtype) == "float32"
        and len(table.shape) == _MATRIX
        and table.numpy().size >= _LARGE
        and call.attrs.axis is not None
        and str(call.attrs.mode) == "wrap"
    )


def _kernel(kinds: list[Any]) -> tirx.PrimFunc:
    """Write the kernel that reads rows of a table; numbers beyond it wrap around, as the importer says."""
    numbers, scales, ids = (
        te.placeholder([int(size) for size in kind.shape], str(kind.dtype), name)
        for name, kind in zip(("numbers", "scales", "ids"), kinds, strict=True)
    )
    rows, size = numbers.shape

    def element(*index: Any) -> Any:
        identifier = ids(*index[:-1])
        row = tirx.floormod(identifier, tirx.const(int(rows), identifier.ty.dtype))
        return numbers(row, index[-1]).astype("float32") * scales(row, 0)

    rows_read = te.compute((*ids.shape, size), element, name="rows")
    function: tirx.PrimFunc = te.create_prim_func([numbers, scales, ids, rows_read])
    return function.without_attr("global_symbol")
