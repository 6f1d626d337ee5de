"""Which operators become one kernel."""

from __future__ import annotations

import pytest
from tvm import tirx

from tests.support.nets import node
from tests.unit.backends.mali.test_schedules import check, compiled, device, net, weights  # noqa: F401 - a fixture

SHAPE = (1, 8, 6, 6)
GATE = [
    node("Conv", ["x", "k"], ["a"]),
    node("GlobalAveragePool", ["a"], ["m"]),
    node("Conv", ["m", "k"], ["c"]),
    node("Sigmoid", ["c"], ["g"]),
    node("Mul", ["a", "g"], ["y"]),
]
RESIDUAL = [node("Conv", ["x", "k"], ["a"]), node("Conv", ["a", "k"], ["b"]), node("Add", ["a", "b"], ["y"])]
SCALED = [node("Conv", ["x", "k"], ["a"]), node("Mul", ["a", "s"], ["y"])]
BOTH = [*GATE[:-1], node("Mul", ["a", "g"], ["z"]), node("Conv", ["z", "k"], ["d"]), node("Mul", ["d", "s"], ["y"])]


@pytest.mark.parametrize(
    ("nodes", "fused"),
    [(GATE, 0), (RESIDUAL, 1), (SCALED, 1), (BOTH, 1)],
    ids=["a gate", "a residual", "a scale", "a gate and a scale of the same shape"],
)
def test_a_gate_is_computed_once_and_not_for_each_pixel(nodes, fused, device, tmp_path):  # noqa: F811 - the fixture
    constants = {"k": weights(8, 8, 1, 1), "s": weights(8, 1, 1)}
    used = {name: array for name, array in constants.items() if any(name in each.input for each in nodes)}
    proto = net(nodes, SHAPE, used)
    kernels = [
        variable.name_hint
        for variable, _ in check(proto, device, tmp_path).functions_items()
        if "conv2d" in variable.name_hint
    ]
    assert sum("multiply" in kernel or "add" in kernel for kernel in kernels) == fused


def test_what_is_set_apart_is_still_fused_with_its_like(tmp_path):
    finished, _ = compiled(
        net(
            [*GATE[:-1], node("Mul", ["a", "g"], ["z"]), node("Relu", ["z"], ["y"])], SHAPE, {"k": weights(8, 8, 1, 1)}
        ),
        tmp_path,
    )
    names = [name.name_hint for name, function in finished.functions_items() if isinstance(function, tirx.PrimFunc)]
    assert any("multiply" in name_ and "relu" in name_ for name_ in names)
