from __future__ import annotations

import pytest

from toolchain.errors import InputError
from toolchain.models import source, variants
from toolchain.models.request import Model, VariantShapes
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


def test_one_set_of_shapes_is_needed_elsewhere():
    model = Model("net.onnx", variants=(VariantShapes("a"), VariantShapes("b")))
    with pytest.raises(InputError, match=r"net\.onnx has 2 variants here, and this command takes one set of shapes"):
        source.load_request(model)
