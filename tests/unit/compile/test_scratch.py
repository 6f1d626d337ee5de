"""What is counted of kernels' buffers is what the runtime keeps for them."""

from __future__ import annotations

import tvm
from tvm.tirx.script import builder as T  # noqa: N812 - its name in all of TVM

from toolchain.backends.cpu.kernels import emit
from toolchain.backends.cpu.kernels.emit import Argument
from toolchain.compile.scratch import scratch_bytes

KIB = 1024


def kernel(serial: int, parallel: int) -> tvm.tirx.PrimFunc:
    """A kernel with a buffer of its own, and one in each thread of a loop; bytes, 0 for none."""

    def body(out) -> None:
        if serial:
            shared = T.alloc_buffer((serial // 4,), "float32")
            T.buffer_store(shared, tvm.tirx.const(1.0, "float32"), [0])
        with T.parallel(0, 4) as number:
            if parallel:
                private = T.alloc_buffer((parallel // 4,), "float32")
                T.buffer_store(private, tvm.tirx.const(1.0, "float32"), [0])
            T.buffer_store(out, tvm.tirx.const(1.0, "float32"), [number])

    return emit.kernel([Argument("out", (4,))], body, {})


def scratch(threads: int, *kernels: tvm.tirx.PrimFunc) -> int:
    return scratch_bytes(tvm.IRModule({f"k{number}": each for number, each in enumerate(kernels)}), threads)


def test_small_buffers_are_on_the_stack():
    assert scratch(4, kernel(512, 512)) == 0
    assert scratch_bytes(None, 4) == 0


def test_a_buffer_before_a_loop_belongs_to_the_calling_thread():
    assert scratch(1, kernel(64 * KIB, 0)) == scratch(4, kernel(64 * KIB, 0)) == 64 * KIB


def test_a_buffer_within_a_parallel_loop_is_there_for_each_thread():
    assert scratch(1, kernel(0, 64 * KIB)) == 64 * KIB
    assert scratch(4, kernel(0, 64 * KIB)) == 4 * 64 * KIB


def test_kernels_share_the_largest():
    assert scratch(2, kernel(0, 64 * KIB), kernel(0, 32 * KIB)) == 2 * 64 * KIB


def test_sizes_are_whole_pages():
    assert scratch(1, kernel(0, 5000)) == 2 * 4096
