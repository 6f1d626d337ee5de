"""Networks in bfloat16 on this machine, whether or not it has the instructions: outputs beside ONNX Runtime's."""

from __future__ import annotations

import pytest

from tests.support import nightly
from tests.support.networks import deployed


@pytest.mark.parametrize(("name", "least"), [("mlp", 1e-5), nightly.left("squeezenet_v1.1", 1e-4)])
def test_outputs_are_near_those_of_onnxruntime(name, least, native, program, tmp_path):
    done = deployed(name, native.with_precision(bfloat16=True), program, tmp_path)
    assert done.difference.ok
    assert done.difference.tolerance == 1e-1
    assert least < done.difference.max_rel < 3e-2, "rounded, and not more than that"
