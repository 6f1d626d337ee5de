from __future__ import annotations

import pytest
import tvm

from toolchain.backends.mali import recurrent
from toolchain.errors import InputError
from toolchain.models.converters.sequence.recurrence import Activation, Recurrence
from toolchain.models.converters.sequence.recurrence_kernel import generic_kernel

TARGET = tvm.target.Target(
    {"kind": "opencl", "device": "mali", "max_threads_per_block": 64, "max_shared_memory_per_block": 2048}
)
RNN = Recurrence("rnn", 3, 2, 100, (False, True), (Activation("tanh"),))


def test_a_block_for_each_direction_and_sequence():
    module = tvm.IRModule({"kernel": generic_kernel(RNN)})
    text = recurrent.use_gpu_kernels(module, TARGET)["kernel"].script()
    assert 'T.launch_thread("blockIdx.x", 4)' in text
    assert 'T.launch_thread("threadIdx.x", 56)' in text


def test_a_state_that_no_block_holds_is_refused():
    wide = Recurrence("rnn", 3, 2, 300, (False,), (Activation("tanh"),))
    with pytest.raises(InputError, match="300 units is too large"):
        recurrent.use_gpu_kernels(tvm.IRModule({"kernel": generic_kernel(wide)}), TARGET)
