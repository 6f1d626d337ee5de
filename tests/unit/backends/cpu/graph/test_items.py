"""Where the tensors of a block lie, and which of its items are needed."""

from __future__ import annotations

import pytest

from toolchain.backends.cpu.graph.items import (
    BlockedOperation,
    Flat,
    Join,
    Plain,
    Slice,
    assign_buffers,
    own_activation,
    prune,
)
from toolchain.backends.cpu.graph.plans import BytePlan, ImagePlan, RowPlan
from toolchain.backends.cpu.layers import Activation, Dense, Map
from toolchain.backends.graph.values import Block, Operation, Value

LANES = 8


def image(channels, height=4, width=5):
    return Value(shape=(1, channels, height, width), dtype="float32")


def made(out, data=None):
    data = data or image(3)
    return ImagePlan(data, out, 0, bare=Map(own_activation(data, LANES), own_activation(out, LANES)))


def joined(*values, plain=False):
    height, width = values[0].image[2:]
    out = image(sum(value.image[1] for value in values), height, width)
    return Join(Operation("concat", values, (out,)), 0, plain)


def test_alone_in_a_buffer():
    out = image(12)
    assert assign_buffers([made(out)], LANES) == {out: (out, Activation(1, 12, 4, 5, LANES))}


def test_parts_of_a_concatenation():
    a, b, c = image(8), image(16), image(5)
    join = joined(a, b, c)
    actual = assign_buffers([made(a), made(b), made(c), join], LANES)
    assert [actual[value][0] for value in (a, b, c)] == [join.out] * 3
    assert [(actual[value][1].first, actual[value][1].held) for value in (a, b, c)] == [(0, 4), (1, 4), (3, 4)]
    assert actual[join.out] == (join.out, own_activation(join.out, LANES))


def test_concatenations_in_each_other():
    a, b, c = image(8), image(8), image(8)
    inner = joined(a, b)
    outer = joined(c, inner.out)
    actual = assign_buffers([made(a), made(b), inner, made(c), outer], LANES)
    assert {actual[value][0] for value in (a, b, c, inner.out)} == {outer.out}
    assert [actual[value][1].first for value in (c, a, b, inner.out)] == [0, 1, 2, 1]
    assert actual[inner.out][1].held == 3


def test_a_tensor_is_in_one_place_only():
    a, b = image(8), image(8)
    first, second = joined(a, b), joined(b, a)
    actual = assign_buffers([made(a), made(b), first, second], LANES)
    assert {actual[value][0] for value in (a, b)} == {first.out}
    assert actual[second.out][0] is second.out


def test_twice_in_the_same_concatenation():
    a = image(8)
    join = joined(a, a)
    assert assign_buffers([made(a), join], LANES)[a][1].first == 0


@pytest.mark.parametrize("plain", [True, False])
def test_what_begins_within_a_block_has_a_buffer_of_its_own(plain):
    a, b = image(4), image(8)
    join = joined(a, b, plain=plain)
    actual = assign_buffers([made(a), made(b), join], LANES)
    assert actual[b][0] is b
    assert (join.out in actual) is not plain


def test_slices_are_views():
    source, low, high = image(24), image(8), image(10)
    actual = assign_buffers([made(source), Slice(source, low, 0, 0), Slice(source, high, 0, 8)], LANES)
    assert actual[low] == (source, Activation(1, 8, 4, 5, LANES, 0, 3))
    assert actual[high] == (source, Activation(1, 10, 4, 5, LANES, 1, 3))


def test_a_slice_of_a_part_and_a_slice_in_a_concatenation():
    a, b, low = image(16), image(8), image(8)
    join = joined(b, a)
    again = joined(b, low)
    actual = assign_buffers([made(a), made(b), join, Slice(a, low, 0, 8), again], LANES)
    assert actual[low] == (join.out, Activation(1, 8, 4, 5, LANES, 2, 3))
    assert actual[again.out][0] is again.out


def test_what_relax_computes_in_blocks_has_buffers_of_its_own():
    a, b = image(8), image(8)
    carried = BlockedOperation(Operation("exp", (a,), (b,)), 0)
    join = joined(a, b)
    actual = assign_buffers([made(a), carried, join], LANES)
    assert actual[a][0] is a
    assert actual[b][0] is b


def test_plain_results_have_no_home():
    rows = Value(shape=(1, 5), dtype="float32")
    items = [
        RowPlan(rows, rows, 0, bare=Dense(1, 3, 5)),
        Flat(image(5), rows, 0),
        Plain(Operation("nn.softmax", (), (rows,)), 0),
    ]
    assert assign_buffers(items, LANES) == {}


def block_to(value):
    """Return a block that another reads a tensor of."""
    value.variable = object()
    return Block(values={value.variable: value}, escaping=[value.variable])


def test_what_nobody_needs_is_left_out():
    a, b, c = image(8), image(8), image(8)
    first, second, other = made(b, a), made(c, b), made(image(8), a)
    assert prune([first, other, second], block_to(c)) == [first, second]


def test_numbers_of_bytes_on_their_way_are_left_to_relax():
    """What makes them of bytes stays an operation; what that reads is needed for it."""
    bytes_ = Value(shape=(1, 8, 4, 5), dtype="uint8")
    numbers, out = image(8), image(8)
    out.maker = Operation("exp", (numbers,), (out,))
    activation = own_activation(bytes_, LANES)
    plain = BytePlan(bytes_, numbers, 0, bare=Map(activation, own_activation(numbers, 1)))
    passing = BytePlan(bytes_, out, 1, bare=Map(activation, own_activation(out, LANES)))
    assert prune([plain, passing], block_to(out)) == [plain]
