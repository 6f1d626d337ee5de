"""Names of a network's inputs that OpenCL C takes for names."""

from __future__ import annotations

import re

import tvm
import tvm_ffi
from tvm import relax

from toolchain.backends.mali.images import MARK

_ENTRY = "main"
_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def use_c_names(module: tvm.IRModule) -> tvm.IRModule:
    """Return a Relax module whose inputs are called by what C takes for a name: kernels call their arguments so."""
    main = module[_ENTRY]
    renamed = {
        parameter: relax.Var(f"input{number}", parameter.ty)
        for number, parameter in enumerate(main.params)
        if not _C_NAME.fullmatch(str(parameter.name)) or MARK in str(parameter.name)
    }
    if not renamed:
        return module
    body = tvm_ffi.structural_map(main.body, (relax.Var, lambda variable: renamed.get(variable, variable)))
    params = [renamed.get(parameter, parameter) for parameter in main.params]
    functions = dict(module.functions_items())
    functions[module.get_global_var(_ENTRY)] = relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs)
    return tvm.IRModule(functions, module.attrs, module.global_infos)
