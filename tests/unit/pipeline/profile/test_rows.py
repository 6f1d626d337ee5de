"""Rows of a profile: medians, shares, rates, and what limits a kernel."""

from types import SimpleNamespace

import pytest

from toolchain.backends.base import Cycles
from toolchain.bundle.kernels import Kernel
from toolchain.device.profiling import Call, Watched
from toolchain.device.roofline import Peak
from toolchain.pipeline.profile import rows

_PEAK = Peak("NEON", 1, gflops=100.0, gbytes_s=10.0, array_kib=1024, max_khz=0)
_F32 = ("float32", (1, 4, 4))


class _Templates:
    def operator(self, layer):
        return {"good": "conv2d"}[layer]

    def gflop(self, layer):
        return {"good": 0.05, "odd": float("inf")}[layer]


def backend(model=None):
    return SimpleNamespace(templates=_Templates(), machine_model=model)


def watched(*calls, plain=(1_000_000,) * 3):
    return Watched(calls, plain, plain, 0, waits=False)


def test_rows_are_medians_in_order_and_what_is_no_kernel_is_one_row():
    calls = (
        Call("vm.builtin.alloc_storage", 0, (1000, 1000, 1000)),
        Call("conv1", 4_000_000, (1_000_000, 500_000, 400_000)),
        Call("vm.builtin.alloc_tensor", 0, (2000, 2000, 9000)),
        Call("conv1", 4_000_000, (100_000, 100_000, 100_000)),
    )
    kernel = Kernel("conv1", (_F32, _F32), layer="good")
    first, second, machine = rows.rows_of(watched(*calls), {"conv1": kernel}, backend(), _PEAK)
    assert (first.place, first.ms, first.share, first.calls, first.operator) == (1, 0.5, 0.5, 2, "conv2d")
    assert (first.gflops, first.of_peak, first.bound) == (pytest.approx(100.0), pytest.approx(1.0), "compute")
    assert first.gbytes_s == pytest.approx(8.0)
    assert (second.place, second.ms) == (2, 0.1)
    assert (machine.operator, machine.calls, machine.ms) == (rows.MACHINE, 2, 0.003)


def test_each_call_has_its_own_nodes():
    calls = (Call("conv1", 8, (10, 10, 10)), Call("vm.builtin.copy", 8, (1, 1, 1)), Call("conv1", 8, (10, 10, 10)))
    nodes, unknown = (("stem", "relu"), ("head",)), ["", "", ""]
    row_by_row = ["stem + 1 more", "stem + 1 more", ""]
    cases = ((nodes, ["stem + 1 more", "head", ""]), (nodes[:1], row_by_row), ((*nodes, ()), unknown), ((), unknown))
    for graph_nodes, texts in cases:
        kernel = Kernel("conv1", (_F32,), layer="good", nodes=graph_nodes)
        profiled = rows.rows_of(watched(*calls), {"conv1": kernel}, backend(), None)
        assert [row.node for row in profiled] == texts


def test_a_layer_that_says_nonsense_has_no_work_and_the_name_of_its_function():
    call = Call("fused_thing12", 8, (10, 10, 10))
    for layer in ("odd", "unknown"):
        (row,) = rows.rows_of(
            watched(call), {"fused_thing12": Kernel("fused_thing12", (_F32,), layer)}, backend(), _PEAK
        )
        assert (row.operator, row.gflop, row.gflops) == ("thing", None, None)


def test_a_kernel_that_no_graph_knows_has_its_time_alone():
    (row,) = rows.rows_of(watched(Call("tvm.contrib.sort", 8, (10, 10, 10))), {}, backend(), _PEAK)
    assert (row.shape, row.gflop, row.of_peak, row.bound, row.brief) == ("", None, None, "", "tvm.contrib.sort")


def test_bytes_are_not_held_against_the_peak_of_floats():
    kernel = Kernel("conv1", (("int8", (4, 4)), _F32), layer="good")
    (row,) = rows.rows_of(watched(Call("conv1", 8, (10, 10, 10))), {"conv1": kernel}, backend(), _PEAK)
    assert row.gflops is not None
    assert (row.of_peak, row.bound) == (None, "")


def test_what_a_model_says_stands_beside_what_was_measured():
    model = SimpleNamespace(clock_mhz=100.0, cycles=lambda *_: Cycles(250_000, 1, 1))
    kernel = Kernel("conv1", (_F32,), layer="good", choice='{"a": 1}')
    (row,) = rows.rows_of(watched(Call("conv1", 8, (10, 10, 10))), {"conv1": kernel}, backend(model), None)
    assert row.modelled_ms == 2.5
    assert row.ms == pytest.approx(1e-5)
