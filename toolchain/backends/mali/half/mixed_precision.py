"""Half precision: convolutions and dense layers read it, and accumulate in single."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax

_ENTRY = "main"


def to_mixed_precision(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose layers compute in half precision where TVM deems that harmless.

    Its inputs and outputs keep their types. Kernels that the importer wrote compute in single precision.

    Args:
        module: Operators of Relax, and calls of kernels.
    """
    transform = relax.transform
    main = module[_ENTRY]
    blocks = [piece for block in main.body.blocks for piece in _split_block(block)]
    body = relax.SeqExpr(blocks, main.body.body)
    body = tvm_ffi.structural_map(body, (relax.DataflowVar, _shared_variables(blocks)))
    body = relax.SeqExpr([_close(block) for block in body.blocks], body.body)
    functions = dict(module.functions_items())
    functions[module.get_global_var(_ENTRY)] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
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
