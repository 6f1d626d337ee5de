"""Places of true elements: first ones first, zeros behind them. What networks end with is in `test_bounded`."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from toolchain.models.converters import Node
from toolchain.models.converters.tensor.selection import true_indices


@pytest.mark.parametrize("flags", [[True, False, True, True, False], [False] * 3, [True] * 4])
def test_places_and_their_count(flags):
    builder = relax.BlockBuilder()
    given = relax.Var("flags", relax.TensorType((len(flags),), "bool"))
    with builder.function("main", [given]):
        with builder.dataflow():
            node = Node("Compress", "chosen", 18, builder, (given,), {}, 1)
            result = builder.emit_output(relax.Tuple(list(true_indices(node, given))))
        builder.emit_func_output(result)
    machine = relax.VirtualMachine(tvm.compile(builder.get(), target="llvm"), tvm.cpu())
    places, count = machine["main"](tvm.runtime.tensor(np.array(flags)))
    wanted = np.flatnonzero(flags)
    assert count.numpy().tolist() == [len(wanted)]
    np.testing.assert_array_equal(places.numpy(), np.pad(wanted, (0, len(flags) - len(wanted))))
