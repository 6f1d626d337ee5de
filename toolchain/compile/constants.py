"""Weights as arguments: the library then has none, stays the same when they change, and they are stored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from toolchain.tensors import DTYPES

ENTRY = "main"
"""The function of a module that is the network."""


@dataclass(frozen=True)
class Compiled:
    """A Relax module that takes its weights as arguments, and those weights in the order of the arguments."""

    module: tvm.IRModule
    params: dict[str, NDArray[Any]]


def lift_constants(module: tvm.IRModule) -> Compiled:
    """Turn the tensor constants of `main` into arguments that follow its inputs."""
    lifter = _ConstantLifter()
    main = module[ENTRY]
    body = lifter.visit_expr(main.body)
    lifted = relax.Function([*main.params, *lifter.variables], body, main.ret_ty, attrs=main.attrs)
    rewritten = tvm.IRModule({**dict(module.functions_items()), module.get_global_var(ENTRY): lifted})
    return Compiled(relax.transform.Normalize()(rewritten), lifter.params)


@relax.expr_functor.mutator
class _ConstantLifter(relax.PyExprMutator):  # type: ignore[misc]
    """Replaces each tensor constant by a variable `p<n>` and remembers its value."""

    def __init__(self) -> None:
        super().__init__(None)
        self.variables: list[relax.Var] = []
        self.params: dict[str, NDArray[Any]] = {}

    def visit_generic_const_(self, op: tvm.ir.GenericConst) -> tvm.ir.Expr:
        value = op.value.numpy()
        # Scalars become immediates of the kernels that use them; an argument would only slow those down.
        if value.size <= 1 or str(value.dtype) not in DTYPES:
            return op
        name = f"p{len(self.variables)}"
        variable = relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
        self.variables.append(variable)
        self.params[name] = np.ascontiguousarray(value)  # as safetensors stores it
        return variable
