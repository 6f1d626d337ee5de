"""What MetaSchedule may make of a kernel for Mali: vectors and registers, and no local memory."""

from __future__ import annotations

import pytest
import tvm
from tvm import te, topi

from tests.support import opencl
from toolchain import board
from toolchain.backends.mali.backend import Mali
from toolchain.models import importer, source
from toolchain.records import tasks, traces
from toolchain.records.metaschedule import meta_schedule
from toolchain.tuning.search import Search

TARGET = Mali(board.load("rk3399").resolved()).target


def convolution():
    x, w = te.placeholder((1, 14, 14, 16), name="x"), te.placeholder((3, 3, 16, 32), name="w")
    return tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.relu(topi.nn.conv2d_nhwc(x, w, 1, 1, 1))])})


def dense():
    x, w = te.placeholder((1, 64), name="x"), te.placeholder((64, 40), name="w")
    return tvm.IRModule({"main": te.create_prim_func([x, w, topi.nn.relu(topi.matmul(x, w))])})


def sampled(module, target, count=6):
    """Draw schedules, postprocessing included."""
    stock = meta_schedule()
    context = stock.TuneContext(
        mod=module,
        target=target,
        space_generator=traces.space_generator(target),
        search_strategy=stock.search_strategy.ReplayTrace(),
        num_threads=1,
        rand_state=1,
        task_name="kernel",
    )
    spaces = context.generate_design_space()
    context.pre_tuning(count, count, spaces, stock.database.MemoryDatabase(), stock.cost_model.RandomModel())
    return [one.sch.mod for one in context.generate_measure_candidates()]


@pytest.mark.parametrize("kernel", [convolution, dense])
def test_kernels_read_vectors_into_registers(kernel):
    found = sampled(kernel(), TARGET)
    assert len(found) == 6
    sources = [tvm.compile(one, target=TARGET).mod.imports[0].inspect_source() for one in found]
    assert all("__local" not in one and "barrier" not in one for one in sources)
    assert any("vload4" in one or "float4" in one for one in sources)


@pytest.mark.parametrize("kernel", [convolution, dense])
def test_work_groups_are_within_the_devices_limit(kernel):
    for module in sampled(kernel(), TARGET):
        extents = {}
        for name, extent in opencl.thread_extents(module["main"]):
            extents[name] = max(extent, extents.get(name, 1))
        threads = [extent for name, extent in extents.items() if name.startswith("threadIdx")]
        assert 1 <= max(threads) <= TARGET.attrs["max_threads_per_block"]


def test_the_cpus_space_is_tvms_own():
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64", "num-cores": 4})
    rules = [str(one) for one in traces.space_generator(target).sch_rules]
    assert rules == [str(one) for one in meta_schedule().schedule_rule.ScheduleRule.create("llvm")]


def test_the_default_schedule_leaves_a_kernel_as_it_is():
    """A search asks for it first, and then goes on with the kernel."""
    backend = Mali(board.load("opencl-local").resolved())
    module = backend.lower(importer.import_model(source.load("mlp")).module)
    search = Search(backend, "evolutionary-random", 0)
    task = next(one for one in tasks.extract(module, backend) if one.operator == "matmul")
    before = tasks.workload_hash(task.module)
    for number in range(2):
        found = search.propose(task, number, 8)
        assert len(found) == 8
        search.learn(task, found, [[1e-4 + int(one.key[:6], 16) * 1e-12] for one in found])
    assert tasks.workload_hash(task.module) == before
