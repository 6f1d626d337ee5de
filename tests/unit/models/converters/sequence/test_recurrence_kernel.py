from __future__ import annotations

import dataclasses

import numpy as np
import tvm

from toolchain.models.converters.sequence.recurrence import RECURRENCE, Activation, Recurrence, from_json
from toolchain.models.converters.sequence.recurrence_kernel import generic_kernel

RNN = Recurrence("rnn", 6, 2, 16, (False,), (Activation("tanh"),))


def test_it_says_what_it_computes():
    assert from_json(str(generic_kernel(RNN).attrs[RECURRENCE])) == RNN


def test_it_does_not_grow_with_the_steps():
    def lines(steps):
        return generic_kernel(dataclasses.replace(RNN, steps=steps)).script().count("\n")

    assert lines(1000) == lines(6)


def test_it_computes():
    generator = np.random.default_rng(0)
    arrays = [
        generator.standard_normal(shape).astype("float32") * 0.3 for shape in (*RNN.arguments.values(), (6, 1, 2, 16))
    ]
    projected, weights, state, every = arrays
    library = tvm.compile(generic_kernel(RNN).with_attr("global_symbol", "main"), target="llvm")
    tensors = [tvm.runtime.tensor(array) for array in (projected, weights, state, every, state)]
    library(*tensors)
    for step in range(6):
        state = np.tanh(projected.reshape(6, 2, 16)[step] + state @ weights[0])
        np.testing.assert_allclose(tensors[3].numpy()[step], state, atol=1e-5)
    np.testing.assert_allclose(tensors[4].numpy(), state, atol=1e-5)


def test_on_a_gpu_each_sequence_has_a_block_and_each_unit_a_thread():
    text = generic_kernel(RNN, threads=24).script()
    assert 'T.launch_thread("blockIdx.x", 2)' in text
    assert 'T.launch_thread("threadIdx.x", 16)' in text
    assert 'T.tvm_storage_sync("shared"' in text
