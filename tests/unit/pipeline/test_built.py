"""What is told of a build, with and without the costs of its kernels."""

from __future__ import annotations

import re

from tests.support import bundles
from toolchain.bundle.manifest import Tuned
from toolchain.errors import BuildError
from toolchain.pipeline.built import Built
from toolchain.report import HEAD, Section, Text, is_ours


class Costs:
    """What a model could say."""

    def document(self):
        return {"stamp": "modelled (x)", "kernels": []}

    def shown(self):
        return ["two kernels, modelled (x)"]

    def sections(self):
        return [Section("Kernels", [Text("two kernels, modelled (x)")])]

    def refusal(self):
        return BuildError("refused")


def test_a_build_alone(tiny):
    built = Built(tiny)
    assert built.document().keys() == {"folder", "digest", "manifest", "memory"}
    line, memory = built.render_text()
    assert line == f"{tiny.folder}: {tiny.manifest.name} for {tiny.manifest.board}, sha256:{tiny.digest}"
    assert re.match(r"memory: \d\.\d MiB: weights 0\.0 MiB, activations ", memory)
    assert built.document()["memory"]["weights"] == tiny.manifest.files["params.safetensors"].size
    assert built.refusal() is None
    assert tiny.digest in built.html()
    assert ">modelled<" not in built.html()


def test_records_of_a_model_are_marked_in_all_that_is_told(tiny, tmp_path):
    by = "g610, 4 cores, 1000 MHz; Mesa 1"
    built = Built(bundles.variant(tiny, tmp_path / "made", {}, records=Tuned("0" * 64, 2, 1, modelled=by)))
    assert built.document()["manifest"].records.modelled == by
    assert built.render_text()[0].endswith(", by modelled tuning records")
    assert ">modelled<" in built.html()
    assert by in built.html()


def test_costs_are_in_all_that_is_told(tiny):
    built = Built(tiny, Costs())
    assert built.document()["costs"]["stamp"] == "modelled (x)"
    assert built.render_text()[-1] == "two kernels, modelled (x)"
    assert str(built.refusal()) == "refused"
    text = built.html()
    assert ">modelled<" in text
    assert "two kernels, modelled (x)" in text
    assert is_ours(text.encode()[:HEAD])
