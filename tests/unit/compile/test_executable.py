"""Kernels compiled in parts compute what they compute in one."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from toolchain.compile import executable

TARGET = tvm.target.Target({"kind": "llvm"})


def chain(length):
    """Return x + 1 + 2 + ..., each addition a kernel of its own."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for number in range(1, length + 1):
                value = builder.emit_te(
                    lambda a, n=number: tvm.te.compute((4,), lambda i: a[i] + float(n)), value, primfunc_name_hint="add"
                )
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


def computed(module, folder, name="model.so"):
    made = executable.compiled(module, TARGET)
    made.export_library(str(folder / name))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / name)), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(np.zeros(4, "float32"))).numpy()


def test_one_part_and_many(tmp_path):
    for length in (1, 8, 70):  # and main, which `compiled` leaves out
        assert len(list(executable._parts(chain(length)))) == min(8, -(-(length + 1) // 8))
        np.testing.assert_array_equal(
            computed(chain(length), tmp_path, f"{length}.so"), np.full(4, length * (length + 1) / 2)
        )


def test_a_module_without_kernels(tmp_path):
    np.testing.assert_array_equal(computed(chain(0), tmp_path), np.zeros(4))


def test_the_parts_are_the_same_each_time():
    def names():
        parts = executable._parts(chain(30))
        return [[str(name.name_hint) for name, _ in part.functions_items()] for part in parts]

    assert names() == names()
    assert sum(len(part) for part in names()) == 30 + 1
