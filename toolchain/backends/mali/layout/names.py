"""Names of a network's inputs that are identifiers of OpenCL C."""

from __future__ import annotations

import re

import tvm
from tvm import relax

from toolchain.backends.mali.images import MARK
from toolchain.backends.mali.rewrite import MAIN, substitute

_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def use_c_names(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose inputs have names that C allows: arguments of kernels get them."""
    renamed = {
        parameter: relax.Var(f"input{number}", parameter.ty)
        for number, parameter in enumerate(module[MAIN].params)
        if not _C_NAME.fullmatch(str(parameter.name)) or MARK in str(parameter.name)
    }
    if not renamed:
        return module
    main = module[MAIN]
    parameters = [renamed.get(parameter, parameter) for parameter in main.params]
    body = substitute(main.body, renamed, relax.Var)
    functions = dict(module.functions_items())
    functions[module.get_global_var(MAIN)] = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule(functions, module.attrs, module.global_infos)
