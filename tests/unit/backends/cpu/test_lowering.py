"""What is bound stays apart on its way to LLVM, and is computed as it was written."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.ir import prim
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu import lowering
from toolchain.backends.cpu.kernels import emit

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": str(tvm.target.codegen.llvm_get_system_cpu())})


def chain(depth, lanes):
    """Return a kernel of x - x * x / 2, done so often to its own result."""

    def body(data, out):
        value = data[emit.ramp(0, lanes)]
        for _ in range(depth):
            value = T.Bind(value)
            value = value - value * value * emit.splat(0.5, lanes)
        T.buffer_store(out, value, [emit.ramp(0, lanes)])

    return emit.kernel([emit.Argument("data", (lanes,)), emit.Argument("out", (lanes,))], body, {})


def for_llvm(function):
    """Return a kernel as LLVM gets it."""
    module = tirx.transform.BindTarget(TARGET.with_host(TARGET))(tvm.IRModule({"main": function}))
    passes, host, _ = tirx.get_tir_pipeline(lowering.PIPELINE)
    return host()(passes(module))


def products(module):
    actual = []
    for _, function in module.functions_items():
        tvm_ffi.structural_walk(function.body, (prim.Mul, actual.append))
    return [item for item in actual if str(item.ty.dtype).startswith("float32")]


@pytest.mark.parametrize("lanes", [1, 8])
def test_what_is_bound_is_there_once(lanes):
    built = for_llvm(chain(6, lanes).with_attr("global_symbol", "main"))
    assert len(products(built)) == 6 * 2  # and not two to the power of six
    assert lowering._BOUND not in built.script()


@pytest.mark.parametrize("lanes", [1, 8])
def test_a_function_of_a_function_of_many_more(lanes):
    data = np.linspace(0.1, 0.9, lanes).astype("float32")
    expected, out = data, tvm.runtime.tensor(np.zeros(lanes, "float32"))
    for _ in range(100):
        expected = expected - expected * expected * np.float32(0.5)
    library = tvm.tirx.build(chain(100, lanes).with_attr("global_symbol", "main"), TARGET, lowering.PIPELINE)
    library["main"](tvm.runtime.tensor(data), out)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5)


def test_indices_are_seen_through():
    def body(data, out):
        activation = T.Bind(tirx.const(3, "int32") * 4)
        T.buffer_store(out, data[activation - 12], [0])

    function = emit.kernel([emit.Argument("data", (1,)), emit.Argument("out", (1,))], body, {})
    loads = []
    for _, item in for_llvm(function.with_attr("global_symbol", "main")).functions_items():
        tvm_ffi.structural_walk(item.body, (tirx.BufferStore, lambda store: loads.append(store.value)))
    assert any(int(item.indices[0]) == 0 for item in loads if isinstance(item, ir.TensorLoad))


def test_a_mark_of_tvms_script_brings_no_warning(capfd):
    def body(data, out):
        with T.seq_scope():
            T.buffer_store(out, data[emit.ramp(0, 4)], [emit.ramp(0, 4)])

    kernel = emit.kernel([emit.Argument("data", (4,)), emit.Argument("out", (4,))], body, {})
    assert "pragma_scope" in kernel.script()
    built = tvm.tirx.build(kernel, target=TARGET, pipeline=lowering.PIPELINE)
    data, out = (tvm.runtime.tensor(np.full(4, number, np.float32)) for number in (3, 0))
    built["main"](data, out)
    assert out.numpy().tolist() == [3] * 4
    assert capfd.readouterr().err == ""
