"""`toolchain models`."""

from __future__ import annotations

from tests.support.commands import done, parsed


def test_models_are_listed():
    names = [model["name"] for model in parsed("models")]
    assert {"resnet-50", "mobilenet", "mlp", "resnet3d-18", "inception_v3"} <= set(names)
    assert "mobilenet" in done("models").out
