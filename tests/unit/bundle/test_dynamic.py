"""The range of a dimension in a bundle's manifest."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from toolchain import bundle, files
from toolchain.bundle import memory
from toolchain.bundle.manifest import Variant
from toolchain.errors import InputError, VerificationError
from toolchain.variants import Dynamic


@pytest.fixture
def manifest(tiny):
    """The manifest of a bundle, as if its first axis had every size from 3 to 11."""
    own = tiny.manifest

    def variant(size):
        inputs = tuple(replace(spec, shape=(size, *spec.shape[1:])) for spec in own.inputs)
        outputs = tuple(replace(spec, shape=(size, *spec.shape[1:])) for spec in own.outputs)
        return Variant(f"rows-{size}", own.entry, inputs, outputs, own.params_order, own.activations)

    first, *others = map(variant, (3, 6, 11))
    changed = replace(own, schema=4, inputs=first.inputs, outputs=first.outputs, variants=(first, *others))
    return replace(changed, dynamic=Dynamic("rows", 3, 11))


def test_a_manifest_with_a_range_is_read_as_it_was_written(manifest):
    assert bundle.read_manifest(manifest.encoded(), "a test") == manifest


def test_every_size_has_a_manifest(manifest):
    eight = manifest.of_shapes("rows-8")
    assert [spec.shape[0] for spec in (*eight.inputs, *eight.outputs)] == [8] * (len(eight.inputs) + len(eight.outputs))
    assert (eight.variants, eight.dynamic, eight.entry) == ((), None, manifest.entry)
    assert manifest.of_shapes("rows-6") == manifest.of_variant("rows-6")
    for name in ("rows-2", "rows-12", "rows-08", "row-8", "rows-8 "):
        with pytest.raises(InputError, match="has no variant"):
            manifest.of_shapes(name)
    with pytest.raises(InputError, match="has no variant"):
        manifest.of_variant("rows-8")


def test_arrays_select_a_size(manifest):
    (spec,) = manifest.inputs
    for size in (3, 4, 6, 10, 11):
        arrays = {spec.name: np.zeros((size, *spec.shape[1:]), np.float32)}
        assert manifest.select(arrays, "a test") == f"rows-{size}"
        assert manifest.select({spec.name: arrays[spec.name][None]}, "a test") == f"rows-{size}"  # samples
    for shape in ((2, *spec.shape[1:]), (12, *spec.shape[1:]), (5, 99), ()):
        with pytest.raises(InputError, match="no size takes the shapes of a test") as caught:
            manifest.select({spec.name: np.zeros(shape, np.float32)}, "a test")
        assert "every rows from 3 to 11" in caught.value.details


def test_the_memory_is_that_of_the_greatest_size(manifest):
    assert memory.planned(manifest) == memory.planned(manifest.of_variant("rows-11"))


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"dimension": "row"}, "the variants are not sizes in order"),
        ({"least": 2}, "not those of the least and of the greatest size"),
        ({"greatest": 12}, "not those of the least and of the greatest size"),
        ({"least": 0}, "the variants are not sizes in order"),
        ({"least": 5}, "the variants are not sizes in order"),
    ],
)
def test_a_range_that_disagrees_with_the_variants_is_refused(manifest, change, fault):
    refused({**document(manifest), "dynamic": {**document(manifest)["dynamic"], **change}}, fault)


def test_shapes_that_do_not_follow_are_refused(manifest):
    changed = document(manifest)
    changed["variants"][1]["inputs"][0]["shape"][0] = 7
    refused(changed, "the shapes of rows-6 do not follow from the size")
    changed = document(manifest)
    changed["variants"][2]["outputs"][0]["shape"][1] += 1
    refused(changed, "a shape is not in proportion to the size")
    changed = document(manifest)
    changed["variants"][1]["entry"] = "main_1"
    refused(changed, "rows-6 is another function")
    del changed["variants"]
    refused({**changed, "schema": 3}, "there are no variants")


def document(manifest):
    return json.loads(manifest.encoded())


def refused(changed, fault):
    with pytest.raises(VerificationError) as caught:
        bundle.read_manifest(files.canonical_json(changed), "a test")
    assert fault in caught.value.details
