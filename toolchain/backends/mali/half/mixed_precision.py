"""Convolutions and dense layers read half precision, and accumulate in single; what follows the last stays single."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from toolchain.backends.mali.rewrite import MAIN, with_blocks


def to_mixed_precision(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose layers compute in half precision where TVM deems that harmless.

    Its inputs and outputs keep their types. Kernels that the importer wrote compute in single precision.

    Args:
        module: Operators of Relax, and calls of kernels.
    """
    transform = relax.transform
    main = module[MAIN]
    blocks = [piece for block in main.body.blocks for piece in _split_block(block)]
    body = relax.SeqExpr(blocks, main.body.body)
    body = tvm_ffi.structural_map(body, (relax.DataflowVar, _shared_variables(blocks)))
    body = relax.SeqExpr([_close(block) for block in body.blocks], body.body)
    functions = dict(module.functions_items())
    functions[module.get_global_var(MAIN)] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    steps = [transform.Normalize(), transform.ToMixedPrecision("float32")]
    result: tvm.IRModule = tvm.transform.Sequential(steps)(tvm.IRModule(functions, module.attrs, module.global_infos))
    return result


def _split_block(block: Any) -> list[Any]:
    """Set apart what TVM's pass for mixed precision fails for: it skips blocks that are not dataflow."""
    if not isinstance(block, relax.DataflowBlock) or not any(map(_is_apart, block.bindings)):
        return [block]
    # Neighbours of one kind stay in one block.
    pieces: list[Any] = []
    for binding in block.bindings:
        kind = relax.BindingBlock if _is_apart(binding) else relax.DataflowBlock
        if pieces and type(pieces[-1]) is kind:
            pieces[-1] = kind([*pieces[-1].bindings, binding])
        else:
            pieces.append(kind([binding]))
    return pieces


def _is_apart(binding: Any) -> bool:
    """Whether a binding calls what TVM has no policy for, such as a kernel, with anything else than tensors."""
    call = binding.value
    if not isinstance(call, relax.Call):
        return False
    has_policy = isinstance(call.op, tvm.ir.Op) and call.op.get_attr("TMixedPrecisionPolicy") is not None
    return not has_policy and any(
        not isinstance(argument.ty, (relax.TensorType, relax.TupleType)) for argument in call.args
    )


def _shared_variables(blocks: list[Any]) -> Any:
    """Return what replaces the variables that several blocks use, as variables of dataflow must not be."""
    home = {binding.var: number for number, block in enumerate(blocks) for binding in block.bindings}
    replaced: dict[Any, Any] = {}
    for number, block in enumerate(blocks):
        plain = not isinstance(block, relax.DataflowBlock)
        for binding in block.bindings:
            away = [
                variable for variable in relax.analysis.free_vars(binding.value) if home.get(variable, number) != number
            ]
            for variable in [*away, *([binding.var] if plain else [])]:
                if isinstance(variable, relax.DataflowVar) and variable not in replaced:
                    replaced[variable] = relax.Var(str(variable.name), variable.ty, variable.span)
    return lambda variable: replaced.get(variable, variable)


def _close(block: Any) -> Any:
    """Give what a dataflow block reads and returns other names within it.

    TVM's pass knows variables in half precision by their names in single, and goes on to in what follows the block; and
    it fails for a field of a tuple that a block returns.
    """
    if not isinstance(block, relax.DataflowBlock):
        return block
    defined = [binding.var for binding in block.bindings]
    read = {variable: None for binding in block.bindings for variable in relax.analysis.free_vars(binding.value)}
    outer = [variable for variable in read if variable not in defined]
    fields = [binding.var for binding in block.bindings if isinstance(binding.value, relax.TupleGetItem)]
    returned = [
        variable
        for variable in defined
        if not isinstance(variable, relax.DataflowVar) and (variable in read or variable in fields)
    ]
    inner = {
        variable: relax.DataflowVar(str(variable.name), variable.ty, variable.span) for variable in (*outer, *returned)
    }

    def renamed(variable: Any) -> Any:
        return inner.get(variable, variable)

    bindings: list[Any] = [relax.VarBinding(inner[variable], variable) for variable in outer]
    for binding in block.bindings:
        value = tvm_ffi.structural_map(binding.value, (relax.Var, renamed), (relax.DataflowVar, renamed))
        if isinstance(binding, relax.MatchCast):
            bindings.append(relax.MatchCast(renamed(binding.var), value, binding.ty))
        else:
            bindings.append(relax.VarBinding(renamed(binding.var), value))
    return relax.DataflowBlock([*bindings, *(relax.VarBinding(variable, inner[variable]) for variable in returned)])


# --- what follows the last layers ------------------------------------------------------------------------------------

# A network's outputs are in single precision. TVM's pass nevertheless goes on in half after a layer, whose result is
# in single, until something returns it: a result beyond 65504 gets infinite on the way.

_CAST = "relax.astype"
_HALF, _SINGLE = "float16", "float32"
_LAYERS = ("relax.nn.conv", "relax.matmul")


def keep_tail_single(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module in which no value that no layer reads is in half precision, where that can be.

    Args:
        module: What `to_mixed_precision` returns.
    """
    main = module[MAIN]
    writer = _TailWriter(_tail(main))
    rewritten = with_blocks(module, [writer.block(block) for block in main.body.blocks])
    steps = [relax.transform.Normalize(), relax.transform.DeadCodeElimination()]
    result: tvm.IRModule = tvm.transform.Sequential(steps)(rewritten)
    return result


def _tail(main: Any) -> set[Any]:
    """Return the variables in half precision that no layer depends on and that can be computed in single."""
    needed: set[Any] = set()
    tail: set[Any] = set()
    for block in reversed(main.body.blocks):
        for binding in reversed(block.bindings):
            value, read = binding.value, relax.analysis.free_vars(binding.value)
            if binding.var in needed or _is_layer(value):
                needed.update(read)
            elif isinstance(binding, relax.VarBinding) and _is_half(binding.var) and _is_rewritable(value):
                tail.add(binding.var)
            elif not _is_cast(value):  # what computes in half precision all the same, as a kernel of the importer does
                needed.update(variable for variable in read if _is_half(variable))
    return tail


def _is_layer(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "").startswith(_LAYERS)


def _is_cast(value: Any) -> bool:
    return isinstance(value, relax.Call) and getattr(value.op, "name", "") == _CAST


def _is_half(variable: Any) -> bool:
    return isinstance(variable.ty, relax.TensorType) and str(variable.ty.dtype) == _HALF


def _is_rewritable(value: Any) -> bool:
    """Whether an operator's result has the type of what it reads, so that it is in single where those are."""
    if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op) or value.ty_args:
        return False
    if hasattr(value.attrs, "dtype") or hasattr(value.attrs, "out_dtype"):
        return _is_cast(value)
    operands = [
        operand
        for argument in value.args
        for operand in (argument.fields if isinstance(argument, relax.Tuple) else [argument])
    ]
    return all(
        (isinstance(operand, relax.Var) and _is_half(operand)) or _HALF not in str(operand.ty) for operand in operands
    )


class _TailWriter:
    """Writes blocks anew, with what is in a tail in single precision."""

    def __init__(self, tail: set[Any]) -> None:
        self._tail = tail
        self._single: dict[Any, Any] = {}  # by variable in half precision, the same in single

    def block(self, block: Any) -> Any:
        """Return a block whose bindings of the tail are in single precision."""
        self._single = {}  # other blocks cannot read what is of this one's dataflow alone
        kind = relax.DataflowVar if isinstance(block, relax.DataflowBlock) else relax.Var
        return type(block)([rewritten for binding in block.bindings for rewritten in self._bindings(binding, kind)])

    def _bindings(self, binding: Any, kind: Any) -> list[Any]:
        value, variable = binding.value, binding.var
        if variable in self._tail:
            return self._rewritten(binding, kind)
        single = self._single.get(value.args[0]) if _is_cast(value) else None
        if single is not None and str(variable.ty.dtype) == _SINGLE:
            return [relax.VarBinding(variable, single)]
        return [binding]

    def _rewritten(self, binding: Any, kind: Any) -> list[Any]:
        """Compute a value in single, and round it for operations that still read it in half."""
        value, variable = binding.value, binding.var
        if _is_cast(value):
            if str(value.args[0].ty.dtype) == _SINGLE:
                self._single[variable] = value.args[0]
            return [binding]
        bindings: list[Any] = []
        arguments = [self._argument(argument, bindings, kind) for argument in value.args]
        single = kind(f"{variable.name}_s", relax.TensorType(variable.ty.shape, _SINGLE), variable.span)
        self._single[variable] = single
        bindings.append(relax.VarBinding(single, relax.Call(value.op, arguments, value.attrs)))
        return [*bindings, relax.VarBinding(variable, relax.op.astype(single, _HALF))]

    def _argument(self, argument: Any, bindings: list[Any], kind: Any) -> Any:
        """Return what is passed, in single; what has to be computed for it is added to `made`."""
        if isinstance(argument, relax.Tuple):
            return relax.Tuple([self._argument(field, bindings, kind) for field in argument.fields])
        if not isinstance(argument, relax.Var) or not _is_half(argument):
            return argument
        if argument not in self._single:
            self._single[argument] = kind(
                f"{argument.name}_s", relax.TensorType(argument.ty.shape, _SINGLE), argument.span
            )
            bindings.append(relax.VarBinding(self._single[argument], relax.op.astype(argument, _SINGLE)))
        return self._single[argument]
