from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from toolchain import tensors
from toolchain.errors import VerificationError
from toolchain.tensors import DTYPES, TOLERANCE, Bound, Difference, TensorSpec

ARRAYS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0)))
NAMES = st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda name: name != "__metadata__")
FINITE = hnp.arrays("float32", 6, elements=st.floats(-1e6, 1e6, width=32))
INTEGERS = [name for name in DTYPES if name not in TOLERANCE]


def container(header: object, data: bytes = b"") -> bytes:
    """Put a safetensors file together, whatever its header says."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: str = "F32", shape: tuple[int, ...] = (1,), end: int = 4) -> dict[str, object]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


WHOLE = container(entry(), b"\0\0\0\0")
DAMAGED = {
    "empty": b"",
    "only a length": b"\x10\0\0\0\0\0\0\0",
    "cut header": WHOLE[:20],
    "cut data": WHOLE[:-1],
    "more data": WHOLE + b"\0",
    "huge length": b"\xff" * 8 + WHOLE[8:],
    "garbage": b"\x93NUMPY\x01\x00v\x00" + b" " * 100,
    "not JSON": (5).to_bytes(8, "little") + b"{nope",
    "not a table": container([]),
    "unknown dtype": container(entry("X9"), b"\0\0\0\0"),
    "dtype that numpy lacks": container(entry("F8_E4M3", (4,)), b"\0\0\0\0"),
    "shape against size": container(entry(shape=(2,)), b"\0\0\0\0"),
    "negative shape": container(entry(shape=(-1,)), b"\0\0\0\0"),
    "offset outside": container(entry(end=400), b"\0\0\0\0"),
}


def compare(got: object, expected: object, dtype: str = "float32", tolerance: float | None = None) -> Difference:
    return tensors.compare({"y": np.array(got, dtype)}, {"y": np.array(expected, dtype)}, tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
def test_round_trip(tmp_path, dtype, shape):
    value = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    tensors.save(tmp_path / "t", {"x": value})
    got = tensors.load(tmp_path / "t")["x"]
    assert (got.dtype, got.shape) == (value.dtype, value.shape)
    np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize(
    "view",
    [
        lambda array: array.T,
        lambda array: array[::2],
        lambda array: array[:, ::-1],
        np.asfortranarray,
        lambda array: np.broadcast_to(array[0], (5, 6)),
    ],
    ids=["transposed", "strided", "reversed", "fortran", "broadcast"],
)
def test_round_trip_of_a_view(tmp_path, view):
    value = view(np.arange(24, dtype=np.int32).reshape(4, 6))
    tensors.save(tmp_path / "t", {"x": value})
    np.testing.assert_array_equal(tensors.load(tmp_path / "t")["x"], value)


@given(st.dictionaries(NAMES, ARRAYS, max_size=4))
def test_any_tensors_come_back(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    tensors.save(path, values)
    got = tensors.load(path)
    assert got.keys() == values.keys()
    for name, value in values.items():
        assert got[name].dtype == value.dtype
        np.testing.assert_array_equal(got[name], value)


@given(st.dictionaries(NAMES, ARRAYS, max_size=6))
def test_aligned_tensors_come_back(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "aligned.safetensors"
    path.write_bytes(tensors.encode_aligned(values))
    got = tensors.load(path)
    assert got.keys() == values.keys()
    for name, value in values.items():
        assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape)
        np.testing.assert_array_equal(got[name], value)


def test_tensors_of_whole_lines_are_aligned_in_the_order_of_their_use():
    values = {
        "odd": np.ones(5, np.float32),
        "z": np.ones(32, np.float32),
        "halves": np.ones(7, np.float16),
        "a": np.ones((2, 16), np.float32),
        "large odd": np.ones(1001, np.float32),
    }
    encoded = tensors.encode_aligned(values)
    length = int.from_bytes(encoded[:8], "little")
    header = json.loads(encoded[8 : 8 + length])
    assert (8 + length) % tensors.ALIGNMENT == 0
    assert list(header) == ["z", "a", "large odd", "odd", "halves"]
    begins = {name: entry["data_offsets"][0] for name, entry in header.items()}
    assert all(begins[name] % tensors.ALIGNMENT == 0 for name in ("z", "a", "large odd"))
    assert encoded == tensors.encode_aligned(dict(values))


def test_bytes_do_not_depend_on_the_order():
    first, second = np.arange(3.0), np.arange(4)
    assert tensors.encode({"a": first, "b": second}) == tensors.encode({"b": second, "a": first})


def test_bytes_do_not_depend_on_the_memory_layout():
    value = np.arange(6.0).reshape(2, 3)
    assert tensors.encode({"a": value}) == tensors.encode({"a": np.asfortranarray(value)})


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_damaged_file(tmp_path, content):
    (tmp_path / "d.safetensors").write_bytes(content)
    with pytest.raises(VerificationError, match=r"d\.safetensors is not a readable safetensors file") as caught:
        tensors.load(tmp_path / "d.safetensors")
    assert caught.value.details


def test_the_undamaged_file_is_readable(tmp_path):
    (tmp_path / "whole").write_bytes(WHOLE)
    assert tensors.load(tmp_path / "whole") == {"x": np.zeros(1, "float32")}


@pytest.mark.parametrize("name", ["missing", "."])
def test_no_file(tmp_path, name):
    with pytest.raises(VerificationError):
        tensors.load(tmp_path / name)


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_any_damage_is_either_read_or_named(tmp_path_factory, changes):
    data = bytearray(WHOLE)
    for position, byte in changes:
        data[position] = byte
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    path.write_bytes(data)
    with contextlib.suppress(VerificationError):
        assert set(tensors.load(path)) <= {*map(chr, range(128))}


@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_outputs(dtype):
    assert compare([0, 1, 1], [0, 1, 1], dtype) == Difference(0.0, 0.0, TOLERANCE.get(dtype, 0.0), ok=True)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("share", "ok"), [(0.5, True), (2.0, False)])
def test_tolerance_by_dtype(dtype, share, ok):
    difference = compare([100, 100 * (1 + share * TOLERANCE[dtype])], [100, 100], dtype)
    assert (difference.ok, difference.tolerance) == (ok, TOLERANCE[dtype])
    assert difference.max_rel == pytest.approx(share * TOLERANCE[dtype], rel=0.05)


@pytest.mark.parametrize(("tolerance", "ok"), [(0.05, False), (0.2, True)])
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_tolerance_of_the_caller(dtype, tolerance, ok):
    assert compare([110], [100], dtype, tolerance) == Difference(10.0, pytest.approx(0.1), tolerance, ok=ok)


def test_relative_to_the_whole_tensor():
    difference = compare([1000, 0.01], [1000, 0])
    assert difference.max_abs == pytest.approx(0.01)
    assert difference.max_rel == pytest.approx(1e-5)
    assert difference.ok


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_must_be_equal(dtype):
    difference = compare([0, 1], [1, 1], dtype)
    assert (difference.max_abs, difference.ok) == (1.0, False)


@pytest.mark.parametrize(("dtype", "large"), [("int64", 2**63 - 1), ("uint64", 2**64 - 1), ("int64", 2**53 + 1)])
def test_large_integers_are_not_rounded(dtype, large):
    difference = compare([large], [large - 1], dtype)
    assert (difference.max_abs, difference.ok) == (1.0, False)
    assert compare([large], [large], dtype).ok


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sides", [("bad", "good"), ("good", "bad"), ("other", "bad"), ("none", "none")])
def test_what_is_not_finite_is_wrong_unless_it_is_expected_there(bad, sides):
    values = {"good": [1.0, 1.0], "bad": [1.0, bad], "other": [bad, 1.0], "none": [bad, bad]}
    difference = compare(values[sides[0]], values[sides[1]], tolerance=1e9)
    assert (difference.max_abs, difference.max_rel, difference.ok) == (math.inf, math.inf, False)
    assert compare([1.0, bad], [1.0, bad]).ok
    assert not compare([1.1, bad], [1.0, bad]).ok


@pytest.mark.parametrize(("got", "ok"), [(0.0, True), (5e-5, True), (1e-3, False)])
def test_reference_of_zeros_compares_absolutely(got, ok):
    difference = compare([got, 0], [0, 0])
    assert difference.ok is ok
    assert difference.max_rel == difference.max_abs == pytest.approx(got)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_least_number_of_a_mask_is_minus_infinity_and_no_scale(dtype):
    lowest = np.finfo(dtype).min
    expected = {"y": np.array([1, lowest], dtype)}
    assert tensors.compare({"y": np.array([1, -np.inf], dtype)}, expected).ok
    assert not tensors.compare({"y": np.array([2, lowest], dtype)}, expected).ok
    assert not tensors.compare({"y": np.array([1, np.inf], dtype)}, expected).ok
    mask = {"y": np.array([lowest], dtype)}
    assert tensors.compare(mask, mask).ok


def test_empty_output():
    assert compare([], []) == Difference(0.0, 0.0, 1e-4, ok=True)


def test_overflow_of_float16_does_not_hide_a_difference():
    assert compare([-60000], [60000], "float16").max_abs == 120000


def test_the_worst_output_decides():
    reference = {"a": np.ones(2), "b": np.ones(2, "float16"), "c": np.ones(2, "int8")}
    outputs = {**reference, "b": np.array([1, 1.5], "float16")}
    difference = tensors.compare(outputs, reference)
    assert (difference.max_abs, difference.max_rel, difference.ok) == (0.5, 0.5, False)
    assert difference.tolerance == TOLERANCE["float16"]


def test_one_wrong_output_is_enough():
    reference = {"a": np.full(2, 100.0), "b": np.array([1000], "int64")}
    outputs = {"a": np.array([100, 100.009]), "b": np.array([1001], "int64")}
    assert not tensors.compare(outputs, reference).ok
    assert tensors.compare({**reference, "a": outputs["a"]}, reference).ok


@pytest.mark.parametrize(
    "outputs",
    [{}, {"y": np.ones(2)}, {"x": np.ones(2), "y": np.ones(2)}, {"x": np.ones((2, 1))}, {"x": np.ones(())}],
    ids=["none", "another name", "one more", "rank", "scalar"],
)
def test_outputs_of_another_signature(outputs):
    with pytest.raises(VerificationError, match="signature") as caught:
        tensors.compare(outputs, {"x": np.ones(2)})
    assert "expected {'x': (2,)}" in caught.value.details


@given(FINITE, FINITE)
def test_difference_is_symmetric_and_bounded(first, second):
    forward, backward = compare(first, second), compare(second, first)
    assert forward.max_abs == backward.max_abs >= 0
    assert forward.ok == (forward.max_rel <= TOLERANCE["float32"])
    assert (forward.max_abs == 0) == np.array_equal(first, second)


@given(FINITE)
def test_nothing_differs_from_itself(value):
    assert compare(value, value) == Difference(0.0, 0.0, TOLERANCE["float32"], ok=True)


@pytest.mark.parametrize(
    ("shape", "elements", "text"),
    [((1, 3, 8, 8), 192, "x 1x3x8x8 int8"), ((), 1, "x scalar int8"), ((0, 4), 0, "x 0x4 int8")],
)
def test_spec(shape, elements, text):
    spec = TensorSpec("x", shape, "int8")
    assert (spec.elements, str(spec)) == (elements, text)


SPECS = (TensorSpec("a", (2, 3), "float32"), TensorSpec("b", (), "int64"))
GOOD = {"a": np.zeros((2, 3), "float32"), "b": np.array(1)}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"a": None}, ["a: missing, expected a 2x3 float32"]),
        ({"a": np.zeros((3, 2), "float32")}, ["a: has (3, 2) float32, expected a 2x3 float32"]),
        ({"a": np.zeros((2, 3))}, ["a: has (2, 3) float64, expected a 2x3 float32"]),
        ({"a": np.zeros((2, 3), ">f4")}, ["a: has (2, 3) >f4, expected a 2x3 float32"]),
        ({"b": np.array([1])}, ["b: has (1,) int64, expected b scalar int64"]),
        ({"c": np.zeros(1)}, ["c: the model has no such input"]),
        ({"c": np.zeros(1), "b": None}, ["c: the model has no such input", "b: missing, expected b scalar int64"]),
    ],
)
def test_signature(change, expected):
    given_tensors = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    assert tensors.check_signature(given_tensors, SPECS) == expected


def test_notes_are_kept_in_the_same_bytes_by_every_process(tmp_path):
    notes = {"runtime": "a runtime 1.2", "tolerance": "0.02", "third": "x", "fourth": "y"}
    tensors.save(tmp_path / "noted", {"a": np.zeros(2)}, notes)
    assert tensors.notes(tmp_path / "noted") == notes
    script = "import sys, numpy; from toolchain import tensors; "
    script += f"sys.stdout.buffer.write(tensors.encode({{'a': numpy.zeros(2)}}, {notes}))"
    for _ in range(4):
        other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
        assert other == (tmp_path / "noted").read_bytes()


def test_a_file_without_notes_has_none(tmp_path):
    tensors.save(tmp_path / "plain", {"a": np.zeros(2)})
    assert tensors.notes(tmp_path / "plain") == {}


@pytest.mark.parametrize("text", ["3", "nonsense", "[1]"])
def test_senseless_notes_are_refused(tmp_path, text):
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(2)}, tmp_path / "odd", {"notes": text})
    with pytest.raises(VerificationError):
        tensors.notes(tmp_path / "odd")


def test_outputs_are_cut_to_their_counts():
    specs = (TensorSpec("y", (2, 4), "float32", Bound(1, "n")), TensorSpec("n", (1,), "int64"))
    outputs = {"y": np.arange(8.0).reshape(2, 4), "n": np.array([3])}
    assert list(tensors.cut(outputs, specs)) == ["y"]
    np.testing.assert_array_equal(tensors.cut(outputs, specs)["y"], outputs["y"][:, :3])


@pytest.mark.parametrize("count", [-1, 5])
def test_a_count_that_there_cannot_be_is_an_error(count):
    specs = (TensorSpec("y", (2, 4), "float32", Bound(1, "n")), TensorSpec("n", (1,), "int64"))
    with pytest.raises(VerificationError, match="output y claims"):
        tensors.cut({"y": np.zeros((2, 4)), "n": np.array([count])}, specs)


def test_outputs_of_many_samples_are_cut_to_the_greatest_count():
    specs = [TensorSpec("y", (2, 4), "int64", Bound(1, "n")), TensorSpec("n", (1,), "int64")]
    outputs = {"y": np.arange(1, 25).reshape(3, 2, 4), "n": np.array([[1], [3], [0]])}
    cut = tensors.cut_stacked(outputs, specs)
    np.testing.assert_array_equal(cut["y"][0], [[1, 0, 0], [5, 0, 0]])
    np.testing.assert_array_equal(cut["y"][1], [[9, 10, 11], [13, 14, 15]])
    np.testing.assert_array_equal(cut["y"][2], np.zeros((2, 3)))
    assert cut["y"].dtype == np.int64
    np.testing.assert_array_equal(cut["n"], outputs["n"])


def test_a_count_that_cannot_be_in_many_samples():
    specs = [TensorSpec("y", (4,), "int64", Bound(0, "n")), TensorSpec("n", (1,), "int64")]
    with pytest.raises(VerificationError, match="claims 5 elements"):
        tensors.cut_stacked({"y": np.zeros((2, 4)), "n": np.array([[1], [5]])}, specs)


def test_bytes_and_stacks_of_a_spec():
    spec = TensorSpec("x", (2, 3), "float16")
    assert (spec.bytes, spec.stacked(5).shape, spec.stacked(5).bytes) == (12, (5, 2, 3), 60)


def test_each_output_has_a_limit_of_its_own():
    expected = {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32), "i": np.ones(3, np.int64)}
    got = {"a": expected["a"] + np.float32(1e-2), "b": expected["b"] + np.float32(2e-4), "i": expected["i"]}
    limits = {"a": tensors.Limit(3e-2, tensors.ROUNDING)}
    difference = tensors.compare(got, expected, limits)
    assert [(output.name, output.ok, output.limit.reason) for output in difference.outputs] == [
        ("a", True, "rounding"), ("b", False, "type"), ("i", True, "type"),
    ]  # fmt: skip
    assert (difference.ok, difference.tolerance, difference.max_rel) == (False, 1e-4, pytest.approx(2e-4, rel=1e-3))
    with_option = tensors.as_option(tensors.compare(got, expected, 0.1))
    assert [output.limit.reason for output in with_option.outputs] == ["option"] * 3
    assert tensors.compare(got, expected, limits | {"b": tensors.Limit(1e-3, tensors.MODEL)}).ok
