"""Networks in bfloat16 on this machine, whether or not it has the instructions: outputs beside ONNX Runtime's."""

from __future__ import annotations

import pytest

from tests.support import nightly
from tests.support.networks import deployed


@pytest.mark.parametrize(("name", "minimum"), [("mlp", 1e-5), nightly.left("squeezenet_v1.1", 1e-4)])
def test_outputs_are_near_those_of_onnxruntime(name, minimum, native, program, tmp_path):
    deployment = deployed(name, native.with_precision(bfloat16=True), program, tmp_path)
    assert deployment.difference.ok
    assert deployment.difference.tolerance == 1e-1
    assert minimum < deployment.difference.max_rel < 3e-2, "rounded, and not more than that"
