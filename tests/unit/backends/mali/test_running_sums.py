"""Running sums on an OpenCL device, in rows that are one block and in longer ones."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.nets import node
from tests.unit.backends.mali.test_schedules import check, device, net  # noqa: F401 - a fixture


@pytest.mark.parametrize(("shape", "axis"), [((2, 300), 1), ((2, 300), 0), ((2, 7, 65), 2)])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 1)])
def test_running_sums(shape, axis, exclusive, reverse, device, tmp_path):  # noqa: F811 - the fixture
    nodes = [node("CumSum", ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)]
    finished = check(net(nodes, shape, {"axis": np.array(axis, np.int64)}), device, tmp_path)
    names = [variable.name_hint for variable in finished.get_global_vars()]
    assert ("running_before" in names) == (shape[axis] > 64)
