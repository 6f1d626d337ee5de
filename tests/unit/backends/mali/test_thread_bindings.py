"""Kernels that the CPU would run on the GPU's memory are refused by name."""

from __future__ import annotations

import pytest
import tvm
from tvm import te

from tests.support import opencl
from toolchain.backends.mali.schedules import require_thread_bindings
from toolchain.errors import InputError


def test_a_kernel_without_work_items_is_named():
    x = te.placeholder((4,), name="x")
    kernel = te.create_prim_func([x, te.compute((4,), lambda i: x[i] + 1.0, name="y")])
    with pytest.raises(InputError, match="in_order cannot be compiled"):
        require_thread_bindings(tvm.IRModule({"in_order": kernel}))


def test_one_with_work_items_is_not():
    require_thread_bindings(opencl.doubled())
