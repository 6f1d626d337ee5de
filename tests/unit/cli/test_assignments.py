from __future__ import annotations

import pytest

from toolchain.cli import assignments
from toolchain.cli.assignments import Shapes
from toolchain.errors import InputError
from toolchain.models.request import Range


@pytest.mark.parametrize(
    ("texts", "expected"),
    [((), {}), (("x:1",), {"x": (1,)}), (("a:b:2,3", "x:1", "x:4"), {"a:b": (2, 3), "x": (4,)})],
)
def test_shapes(texts, expected):
    assert assignments.parse_model_shapes(texts, ()) == Shapes(expected, {})


@pytest.mark.parametrize("text", ["", "x", "x:", ":1", "x:-1", "x:1,", "x:a", "x:1.5", f"x:{2**31}"])
def test_no_shapes(text):
    with pytest.raises(InputError, match="is not of the form NAME:1,3,224,224"):
        assignments.parse_model_shapes((text,), ())


@pytest.mark.parametrize(
    ("texts", "expected"),
    [((), {}), (("n=3", "past = now + 1=0", "n=3"), {"n": 3, "past = now + 1": 0})],
)
def test_dimensions(texts, expected):
    assert assignments.parse_model_shapes((), texts) == Shapes({}, expected)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        *((((text,)), "is not of the form NAME=SIZE") for text in ("", "n", "n=", "=1", "x:1,3")),
        *(((f"n={size}",), f"{size} is not a valid size") for size in ("-1", "1.5", "a", " 1", "1_0")),
        (("n=1,",), " is not a valid size"),
        (("n=2,3,2",), "--dim n=2,3,2 has a size twice"),
        *(((f"n={text}",), "is not a range FIRST:LAST:STEP") for text in ("1:2", "1:2:0", "3:2:1", "1:2:3:4")),
        (("n=0:63:1", "m=1,2"), "these options make 128 variants, and a bundle has at most 64"),
        (("n=0:64:1",), "these options make 65 variants"),
        (("n=3", "n=4"), "--dim n has two sizes: 3 and 4"),
    ],
)
def test_no_dimensions(texts, message):
    with pytest.raises(InputError, match=message):
        assignments.parse_model_shapes((), texts)


def test_a_dimension_of_any_size():
    found = assignments.parse_model_shapes(("x:1,2",), ("batch=2", "length=1..512"))
    assert found.range == Range("length", 1, 512)
    assert (found.shapes, found.dims) == ({"x": (1, 2)}, {"batch": 2})
    assert [variant.dims for variant in found.variants] == [{"length": size} for size in (1, 23, 267, 511, 512)]
    assert found.variants[1].name == "length-23"


@pytest.mark.parametrize(
    ("shapes", "dims", "message"),
    [
        *(((), (f"n={text}",), "is not a range FIRST..LAST") for text in ("1..", "..4", "1..2..3", "a..9", "1...9")),
        *(
            ((), (f"n={text}",), "is not a range from 1 or more over")
            for text in ("0..9", "1..7", "9..1", "1..999999999")
        ),
        ((), ("n=1..9", "m=1..9"), "n and m cannot have several sizes"),
        ((), ("n=1..9", "m=1,2"), "n and m cannot have several sizes"),
        (("a=x:1", "b=x:2"), ("n=1..9",), "n and a and b cannot have several sizes"),
    ],
)
def test_no_dimension_of_any_size(shapes, dims, message):
    with pytest.raises(InputError, match=message):
        assignments.parse_model_shapes(shapes, dims)


def variants(shapes: tuple[str, ...], dims: tuple[str, ...] = ()) -> list[tuple[str, object, object]]:
    return [(each.name, each.shapes, each.dims) for each in assignments.parse_model_shapes(shapes, dims).variants]


def test_variants_by_name():
    found = variants(("small=x:1,3", "large=x:2,3", "m:4", "large=z:1:5"))
    assert found == [("small", {"x": (1, 3)}, {}), ("large", {"x": (2, 3), "z:1": (5,)}, {})]


def test_variants_of_ranges_and_lists():
    found = variants((), ("width=64:160:32", "n=1"))
    assert found == [(f"width-{size}", {}, {"width": size}) for size in (64, 96, 128, 160)]
    names = [name for name, _, _ in variants((), ("a b=1,2", "n=0:5:5"))]
    assert names == ["a_b-1-n-0", "a_b-1-n-5", "a_b-2-n-0", "a_b-2-n-5"]
    assert [name for name, _, _ in variants((), (f"{'n' * 80}=1,2",))] == ["variant-0", "variant-1"]


@pytest.mark.parametrize(
    ("shapes", "dims", "message"),
    [
        (("small=x:1",), (), "small is the only variant"),
        (("small=x:1", "large=x:2"), ("n=1,2",), "named shapes cannot be combined"),
        (("a.b=x:1", "c=x:2"), (), "cannot be the name of a variant"),
        (("=x:1", "c=x:2"), (), "cannot be the name of a variant"),
        (("a=x", "c=x:2"), (), "is not of the form"),
    ],
)
def test_no_variants(shapes, dims, message):
    with pytest.raises(InputError, match=message):
        assignments.parse_model_shapes(shapes, dims)


@pytest.mark.parametrize("text", ["", "x", "x=", "=1"])
def test_no_value_for_an_input(text):
    with pytest.raises(InputError, match="is not of the form NAME=VALUE"):
        assignments.parse_fixed((text,))
