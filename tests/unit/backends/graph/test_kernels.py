from __future__ import annotations

import pytest
import tvm
from tvm import s_tir

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.backends.graph.kernels import as_opaque


@pytest.mark.parametrize(("inputs", "wrapped"), [(1, True), (2, False)])
def test_kernels_with_one_input_become_a_block_and_stay_the_same_code(inputs, wrapped):
    arguments = [Argument(f"given{n}", (8,)) for n in range(inputs + 1)]

    def body(data, *others):
        emit.T.buffer_store(others[-1], data[0], [0])

    written = emit.kernel(arguments, body, {})
    function = as_opaque(written, {"some": "attribute"})
    assert isinstance(function.body, s_tir.SBlockRealize) is wrapped
    assert (str(function.attrs["some"]), int(function.attrs["op_pattern"])) == ("attribute", 8)
    assert "global_symbol" not in function.attrs
    sources = [
        tvm.compile(tvm.IRModule({"main": one.with_attr("global_symbol", "main")}), target="llvm").mod.inspect_source(
            "ll"
        )
        for one in (written, function)
    ]
    assert sources[0] == sources[1]


def test_a_block_is_no_second_time_wrapped():
    function = as_opaque(emit.kernel([Argument("a", (8,)), Argument("b", (8,))], lambda *_: emit.T.evaluate(0), {}), {})
    tvm.ir.assert_structural_equal(as_opaque(function, {}), function)
