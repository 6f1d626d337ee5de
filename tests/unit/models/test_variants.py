from __future__ import annotations

import pytest

from toolchain.errors import InputError
from toolchain.models import source, variants
from toolchain.models.request import Model, Range, VariantShapes
from toolchain.tensors import TensorSpec

X, WIDE = TensorSpec("x", (1, 4), "float32"), TensorSpec("x", (1, 8), "float32")


def test_the_model_of_a_variant_has_the_shapes_of_all_and_its_own():
    variant = VariantShapes("wide", {"x": (1, 8)}, {"n": 2})
    model = Model("net.onnx", {"x": (1, 4), "y": (3,)}, dims={"m": 1}, variants=(variant,))
    own = model.of_variant(variant)
    assert (own.shapes, own.dims, own.variants) == ({"x": (1, 8), "y": (3,)}, {"m": 1, "n": 2}, ())


def test_variants_that_shapes_tell_apart():
    variants.check_distinct({"small": (X,), "wide": (WIDE,)})


@pytest.mark.parametrize(
    ("other", "message"),
    [((X,), "variants small and other have the same shapes"), ((), "variants small and other have different inputs")],
)
def test_variants_that_shapes_do_not_tell_apart(other, message):
    with pytest.raises(InputError, match=message):
        variants.check_distinct({"small": (X,), "other": other})


@pytest.mark.parametrize(
    ("ends", "sizes"), [((1, 512), [1, 23, 267, 511, 512]), ((1, 8), [1, 3, 5, 7, 8]), ((7, 15), [7, 11, 13, 14, 15])]
)
def test_the_sizes_of_a_range_that_are_checked(ends, sizes):
    found = variants.of_range(Range("seq len", *ends))
    assert [variant.dims["seq len"] for variant in found] == sizes
    assert found[0].name == f"seq_len-{ends[0]}"


def test_the_model_of_a_size():
    range_ = Range("n", 1, 9)
    model = variants.with_range(Model("net.onnx", dims={"m": 1}), range_)
    assert (len(model.variants), model.range) == (5, range_)
    assert (model.of_size(4).dims, model.of_size(4).variants, model.of_size(4).range) == ({"m": 1, "n": 4}, (), None)


def test_a_range_whose_name_is_a_formula_has_a_name():
    assert variants.dynamic_of(Range("2 * n", 1, 9)).dimension == "2_n"
    assert variants.dynamic_of(Range("*" * 80, 1, 9)).dimension == "size"
    assert len(variants.dynamic_of(Range("n" * 80, 1, 9)).variant(2**28)) <= 64


def test_one_set_of_shapes_is_needed_elsewhere():
    model = Model("net.onnx", variants=(VariantShapes("a"), VariantShapes("b")))
    with pytest.raises(InputError, match=r"net\.onnx has 2 variants here, and this command takes one set of shapes"):
        source.load_request(model)
