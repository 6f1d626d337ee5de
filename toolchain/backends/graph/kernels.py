"""The functions of kernels in a module, in the form that TVM's passes over whole networks expect."""

from __future__ import annotations

from collections.abc import Mapping

from tvm import s_tir, tirx

_ONE_INPUT = 2  # parameters: the result too
_OPAQUE = 8  # TVM's kind of operation that no other is fused with


def in_root_block(body: tirx.Stmt) -> tirx.Stmt:
    """Return statements as MetaSchedule's passes over a whole module expect the body of any kernel: blocks."""
    for name_of_block in ("layer", "root"):
        block = s_tir.SBlock([], [], [], name_of_block, body)
        body = s_tir.SBlockRealize([], True, block)  # noqa: FBT003 - TVM has no name for it
    return body


def as_opaque(function: tirx.PrimFunc, attributes: Mapping[str, str]) -> tirx.PrimFunc:
    """Return a kernel as a module's function with some attributes, which passes leave alone."""
    # A pass that looks for reshapes wants a block in each kernel that has one input.
    if len(function.params) == _ONE_INPUT and not isinstance(function.body, s_tir.SBlockRealize):
        block = s_tir.SBlock([], [], [], "root", function.body)
        function = function.with_body(s_tir.SBlockRealize([], True, block))  # noqa: FBT003 - its signature
    return function.without_attr("global_symbol").with_attrs({**attributes, "op_pattern": _OPAQUE})
