"""The variants of a bundle in its manifest and in its reference."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from toolchain import bundle, files
from toolchain.bundle import Reference, memory
from toolchain.bundle.manifest import Variant
from toolchain.errors import InputError, VerificationError
from toolchain.tensors import TensorSpec


@pytest.fixture
def manifest(tiny):
    """The manifest of a bundle, as if it had two variants."""
    single = tiny.manifest
    first = Variant("one", single.entry, single.inputs, single.outputs, single.params_order, single.activations)
    wide = (TensorSpec("x", (3, 8), "float32"),)
    second = Variant("three", "main_1", wide, (TensorSpec("y", (3, 4), "float32"),), single.params_order, 1000)
    return replace(single, schema=4, variants=(first, second))


def test_a_manifest_with_variants_is_read_as_it_was_written(manifest):
    assert bundle.read_manifest(manifest.encoded(), "a test") == manifest
    assert manifest.variant_names == ("one", "three")


def test_the_manifest_of_a_variant(manifest, tiny):
    assert manifest.of_variant("one") == tiny.manifest
    three = manifest.of_variant("three")
    assert (three.schema, three.entry, three.inputs[0].shape, three.variants) == (3, "main_1", (3, 8), ())
    assert (tiny.manifest.of_variant(""), tiny.manifest.variant_names) == (tiny.manifest, ("",))
    with pytest.raises(InputError, match="has no variant 'tree'") as caught:
        manifest.of_variant("tree")
    assert caught.value.hint == "did you mean three?"


def test_the_memory_is_that_of_all_variants(manifest, tiny):
    single, together = memory.planned(tiny.manifest), memory.planned(manifest)
    assert together.activations == single.activations + 1000 + 3 * 4 * 4  # and the outputs of two runs of each
    assert (together.inputs, together.weights) == (single.inputs + 3 * 8 * 4, single.weights)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"schema": 3}, "schema 4 is for a bundle that has some"),
        ({"variants": []}, "exact form|schema 4"),
        ({"entry": "main_1"}, "the first one is not what the manifest itself has"),
        ({"target": {"kind": "opencl"}}, "they are for CPUs"),
    ],
)
def test_a_manifest_that_disagrees_with_its_variants_is_refused(manifest, change, fault):
    refused({**json.loads(manifest.encoded()), **change}, fault)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": "one"}, "two are the same"),
        ({"entry": "main"}, "two are the same"),
        ({"inputs": [{"name": "x", "shape": [1, 8], "dtype": "float32"}]}, "two are the same"),
        ({"inputs": [{"name": "z", "shape": [3, 8], "dtype": "float32"}]}, "three has another signature"),
        ({"inputs": [{"name": "x", "shape": [3, 8, 1], "dtype": "float32"}]}, "three has another signature"),
        ({"inputs": [{"name": "x", "shape": [3, 8], "dtype": "float64"}]}, "three has another signature"),
        ({"outputs": [{"name": "y", "shape": [3, 2**32], "dtype": "float32"}]}, "variants: three: "),
        ({"params_order": ["p0", "p0"]}, "variants: three: params_order: it has a name twice"),
        ({"name": "a.b"}, "variants"),
        ({"name": ""}, "variants"),
    ],
)
def test_variants_that_cannot_be_are_refused(manifest, change, fault):
    document = json.loads(manifest.encoded())
    document["variants"][1] |= change
    refused(document, fault)


def test_too_few_and_too_many_variants_are_refused(manifest):
    document = json.loads(manifest.encoded())
    document["variants"] = document["variants"][:1]
    refused(document, "a bundle has 2 to 64 of them")


def refused(document: dict[str, object], fault: str) -> None:
    with pytest.raises(VerificationError, match="the manifest of a test is not valid") as caught:
        bundle.read_manifest(files.canonical_json(document), "a test")
    assert any(phrase in caught.value.details for phrase in fault.split("|")), caught.value.details


def reference(rows: int) -> Reference:
    stream = np.random.default_rng(rows)
    inputs = {"x": stream.standard_normal((rows, 8), dtype=np.float32)}
    return Reference(f"runtime {rows}", inputs, {"y": np.ones((rows, 4), np.float32)}, rows / 1000)


def test_the_references_of_variants_are_read_as_they_were_written(manifest, tmp_path):
    saved = replace(reference(1), variants={"three": reference(3)})
    saved.save(tmp_path)
    loaded = Reference.read(tmp_path / bundle.REFERENCE)
    loaded.check(manifest)
    for name, expected in (("one", reference(1)), ("three", reference(3))):
        variant = loaded.of_variant(name)
        assert (variant.runtime, variant.tolerance, variant.variants) == (expected.runtime, expected.tolerance, {})
        np.testing.assert_array_equal(variant.inputs["x"], expected.inputs["x"])


@pytest.mark.parametrize("variants", [{}, {"four": 3}, {"three": 3, "four": 3}, {"three": 2}])
def test_a_reference_of_other_variants_is_refused(manifest, variants):
    with_variants = replace(reference(1), variants={name: reference(rows) for name, rows in variants.items()})
    with pytest.raises(VerificationError, match="the bundle's reference"):
        with_variants.check(manifest)


def test_a_reference_with_variants_does_not_fit_a_model_without(tiny):
    with pytest.raises(VerificationError, match="does not fit its model"):
        replace(reference(1), variants={"three": reference(3)}).check(tiny.manifest)


def test_every_variant_needs_finite_values():
    bad = replace(reference(3), outputs={"y": np.full((3, 4), np.nan, np.float32)})
    with pytest.raises(VerificationError, match="no finite value in y"):
        replace(reference(1), variants={"three": bad}).check_comparable()
