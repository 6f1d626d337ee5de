"""Kernels that are written as they are to run."""

from __future__ import annotations

import pytest
import tvm
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.mali.rewrite import largest_divisor, launch, write_kernel
from toolchain.backends.mali.schedules import require_thread_bindings


def negated(size=8):
    def body(x, y):
        with launch(group_x=size // 4, item_x=4) as (group, item):
            T.buffer_store(y, -x[group * 4 + item], [group * 4 + item])

    return write_kernel("negated", {"x": (size,), "y": (size,)}, body)


def test_a_written_kernel_is_launched_and_left_alone():
    function = negated()
    require_thread_bindings(tvm.IRModule({"main": function}))
    assert function.attrs["tirx.is_scheduled"]
    assert 'T.sblock("negated")' in function.script()


@pytest.mark.parametrize(("extent", "limit", "divisor"), [(14, 64, 14), (14, 8, 7), (13, 8, 1), (64, 16, 16)])
def test_the_largest_divisor_is_not_above_the_limit(extent, limit, divisor):
    assert largest_divisor(extent, limit) == divisor
