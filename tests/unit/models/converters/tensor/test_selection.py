"""Places of true elements: first ones first, zeros behind them. What networks end with is in `test_bounded`."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from toolchain.models.converters import Node
from toolchain.models.converters.tensor.indexing import true_indices


@pytest.mark.parametrize("flags", [[True, False, True, True, False], [False] * 3, [True] * 4])
def test_places_and_their_count(flags):
    builder = relax.BlockBuilder()
    variable = relax.Var("flags", relax.TensorType((len(flags),), "bool"))
    with builder.function("main", [variable]):
        with builder.dataflow():
            node = Node("Compress", "chosen", 18, builder, (variable,), {}, 1)
            result = builder.emit_output(relax.Tuple(list(true_indices(node, variable))))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())
    indices, count = machine["main"](tvm.runtime.tensor(np.array(flags)))
    expected = np.flatnonzero(flags)
    assert count.numpy().tolist() == [len(expected)]
    np.testing.assert_array_equal(indices.numpy(), np.pad(expected, (0, len(flags) - len(expected))))
