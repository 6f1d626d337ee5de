"""Kernels compiled in parts compute what they compute in one."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import ir, relax
from tvm.ir.instrument import pass_instrument

from tests.support import random_graphs, relax_nets
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
    compiled = executable.compile_module(module, TARGET).executable
    compiled.export_library(str(folder / name))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(folder / name)), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(np.zeros(4, "float32"))).numpy()


def test_one_part_and_many(tmp_path):
    for length in (1, 8, 70):  # and main, which `compiled` leaves out
        assert len(list(executable._split(chain(length)))) == min(8, -(-(length + 1) // 8))
        np.testing.assert_array_equal(
            computed(chain(length), tmp_path, f"{length}.so"), np.full(4, length * (length + 1) / 2)
        )


def test_a_module_without_kernels(tmp_path):
    np.testing.assert_array_equal(computed(chain(0), tmp_path), np.zeros(4))


def test_the_parts_are_the_same_each_time():
    def names():
        modules = executable._split(chain(30))
        return [[str(name.name_hint) for name, _ in module.functions_items()] for module in modules]

    assert names() == names()
    assert sum(len(group) for group in names()) == 30 + 1


@pass_instrument
class Planned:
    """Keeps what TVM's planner of memory makes of a module."""

    def __init__(self):
        self.modules = []

    def run_after_pass(self, module, info):
        if info.name == "StaticPlanBlockMemory":
            self.modules.append(module)


def storages(module):
    """Yield for each call of a kernel the storage of its result, and those of the rest of its arguments."""
    storage_of = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            source = value.args[0] if isinstance(value, ir.Call) and value.args else value
            if isinstance(value, ir.Call) and isinstance(value.op, ir.GlobalVar):
                yield storage_of.get(value.args[-1]), [storage_of.get(argument) for argument in value.args[:-1]]
            elif isinstance(value, ir.Call) and value.op.name == "relax.memory.alloc_storage":
                storage_of[binding.var] = binding.var
            elif source in storage_of:  # a tensor in it, a view, or another name
                storage_of[binding.var] = storage_of[source]


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_no_kernel_has_its_result_where_one_of_its_inputs_lies(seed):
    """The last tile of a kernel computes some elements again, from inputs that have to be as they were."""
    module = chain(9) if seed is None else relax_nets.prepared(random_graphs.build(seed))
    planned = Planned()
    with TARGET, tvm.transform.PassContext(instruments=[planned]):
        relax.get_pipeline("default")(module)
    calls = list(storages(planned.modules[-1]))
    results = [result for result, _ in calls if result is not None]
    assert len(set(results)) < len(results), "no memory is used twice"
    assert all(result not in inputs for result, inputs in calls if result is not None)
