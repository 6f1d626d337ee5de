from __future__ import annotations

import pytest

from toolchain.cli import assignments
from toolchain.errors import InputError


@pytest.mark.parametrize(
    ("texts", "expected"),
    [((), {}), (("x:1",), {"x": (1,)}), (("a:b:2,3", "x:1", "x:4"), {"a:b": (2, 3), "x": (4,)})],
)
def test_shapes(texts, expected):
    assert assignments.parse_shapes(texts) == expected


@pytest.mark.parametrize("text", ["", "x", "x:", ":1", "x:-1", "x:1,", "x:a", "x:1.5", f"x:{2**31}"])
def test_no_shapes(text):
    with pytest.raises(InputError, match="is not of the form NAME:1,3,224,224"):
        assignments.parse_shapes((text,))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [((), {}), (("n=3", "past = now + 1=0", "n=3"), {"n": 3, "past = now + 1": 0})],
)
def test_dimensions(texts, expected):
    assert assignments.parse_dims(texts) == expected


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        *((((text,)), "is not of the form NAME=SIZE") for text in ("", "n", "n=", "=1", "x:1,3")),
        *(((f"n={size}",), f"{size} is not a valid size") for size in ("-1", "1.5", "a", "1,2", " 1", "1_0")),
        (("n=3", "n=4"), "--dim n has two sizes: 3 and 4"),
    ],
)
def test_no_dimensions(texts, message):
    with pytest.raises(InputError, match=message):
        assignments.parse_dims(texts)


@pytest.mark.parametrize("text", ["", "x", "x=", "=1"])
def test_no_value_for_an_input(text):
    with pytest.raises(InputError, match="is not of the form NAME=VALUE"):
        assignments.parse_fixed((text,))
