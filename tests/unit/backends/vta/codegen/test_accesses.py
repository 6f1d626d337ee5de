from __future__ import annotations

import pytest
from tvm import tirx

from toolchain.backends.vta.codegen.accesses import Accesses, Around, Walk, elements_of, memory_of
from toolchain.backends.vta.codegen.nests import Loop
from toolchain.backends.vta.codegen.recorder import Rows
from toolchain.backends.vta.isa.instructions import Memory
from toolchain.errors import BuildError

OUTER, ROW, COLUMN, *LANES = (tirx.Var(name, "int32") for name in ("outer", "row", "column", "batch", "lane"))
AROUND = Around((OUTER,), (3,))
ALL = Around((OUTER, ROW, COLUMN, *LANES), (3, 4, 5, 2, 16))
ACCESS = Accesses(AROUND, ALL)

TENSOR = tirx.decl_buffer((12, 6, 2, 16), "int8", "x")
TILE = tirx.decl_buffer((4, 5, 2, 16), "int8", "tile", scope="local.inp_buffer")
SUMS = tirx.decl_buffer((4, 2, 16), "int32", "sums", scope="local.acc_buffer")
ELEMENT = (Loop(2), Loop(16))  # the loops within an element
WHOLE = ((0, 2), (0, 16))  # all their passes
WEIGHTS = tirx.decl_buffer((5, 16, 16), "int8", "w", scope="local.wgt_buffer")


def load(buffer: tirx.Buffer, *indices):
    return tirx.BufferLoad(buffer, list(indices))


def test_buffers():
    assert [memory_of(buffer) for buffer in (TENSOR, TILE, SUMS, WEIGHTS)] == [None, Memory.INP, Memory.ACC, Memory.WGT]
    assert [elements_of(buffer) for buffer in (TILE, SUMS, WEIGHTS)] == [20, 4, 5]


def test_loops_over_elements():
    store = tirx.BufferStore(SUMS, tirx.const(0, "int32"), [ROW, *LANES])
    src, wgt = load(TILE, ROW, COLUMN, *LANES), load(WEIGHTS, COLUMN, LANES[1], LANES[1])
    assert ACCESS.walk(store, src, wgt) == Walk((Loop(4, 1, 5, 0), Loop(5, 0, 1, 1), *ELEMENT))
    assert ACCESS.walk(store, src, wgt).moving == (Loop(4, 1, 5, 0), Loop(5, 0, 1, 1))
    assert ACCESS.walk(store).moving == (Loop(4, 1),)


def test_a_walk_that_starts_within_its_tile():
    store, src = tirx.BufferStore(SUMS, tirx.const(0, "int32"), [ROW, *LANES]), load(TILE, ROW + 2, COLUMN + 1, *LANES)
    walk = ACCESS.walk(store, src)
    assert walk.first == (0, 11, 0)
    assert walk.part(((1, 3), (2, 5), *WHOLE)) == Walk((Loop(2, 1, 5), Loop(3, 0, 1), *ELEMENT), (1, 18, 0))
    with pytest.raises(BuildError, match="within its tile"):
        ACCESS.transfer(TILE, [ROW + 1, COLUMN, *LANES], TENSOR, [ROW, COLUMN, *LANES])


@pytest.mark.parametrize(
    ("condition", "passes"),
    [
        (OUTER + ROW * 2 >= 3, {0: (2, 4), 1: (1, 4), 2: (1, 4)}),
        (OUTER + ROW * 2 > 3, {0: (2, 4), 1: (2, 4), 2: (1, 4)}),
        (ROW * 2 < OUTER + 3, {0: (0, 2), 1: (0, 2), 2: (0, 3)}),
        (ROW * 2 <= OUTER + 3, {0: (0, 2), 1: (0, 3), 2: (0, 3)}),
        (OUTER > 0, {0: None, 1: (0, 4), 2: (0, 4)}),
        (OUTER + ROW < 1, {0: (0, 1), 1: None, 2: None}),
        (tirx.And(OUTER + ROW >= 1, ROW < 2), {0: (1, 2), 1: (0, 2), 2: (0, 2)}),
        (ROW.equal(OUTER + 1), {0: (1, 2), 1: (2, 3), 2: (3, 4)}),
        (OUTER.equal(1), {0: None, 1: (0, 4), 2: None}),
    ],
)
def test_conditions(condition, passes):
    walk = ACCESS.walk(tirx.BufferStore(SUMS, tirx.const(0, "int32"), [ROW, *LANES]))
    for outer, expected in passes.items():
        result = walk.passes(ACCESS.limits(condition), (outer,))
        assert result == (expected and (expected, (0, 5), *WHOLE))


@pytest.mark.parametrize("condition", [tirx.Or(ROW < 1, ROW > 2), tirx.NE(ROW, 1), ROW + COLUMN < 3])
def test_conditions_that_are_not_followed(condition):
    with pytest.raises(BuildError, match="condition"):
        ACCESS.limits(condition)


def test_a_transfer():
    transfer = ACCESS.transfer(TILE, [ROW, COLUMN, *LANES], TENSOR, [OUTER * 4 + ROW, COLUMN + 1, *LANES])
    assert not transfer.clipped
    assert list(transfer.rows(7, (2,))) == [Rows(7, 8 * 6 + 1, 4, 5, 6)]


def test_padding_is_seen_where_any_pass_reaches_outside():
    indices = [OUTER * 4 + ROW - 1, COLUMN + 1, *LANES]
    transfer = ACCESS.transfer(TILE, [ROW, COLUMN, *LANES], TENSOR, indices)
    assert transfer.clipped
    assert list(transfer.rows(0, (0,))) == [Rows(0, 1, 3, 5, 6, (1, 0))]
    assert list(transfer.rows(0, (1,))) == [Rows(0, 19, 4, 5, 6)]


def test_loops_that_share_an_axis():
    with pytest.raises(BuildError, match="two loops"):
        ACCESS.transfer(TILE, [ROW, COLUMN, *LANES], TENSOR, [ROW + COLUMN, OUTER, *LANES])


def test_an_index_that_is_not_linear():
    with pytest.raises(BuildError, match="not linear") as caught:
        ACCESS.transfer(TILE, [ROW, COLUMN, *LANES], TENSOR, [ROW * ROW, COLUMN, *LANES])
    assert "row * row" in caught.value.details


def test_a_place_in_sram_that_depends_on_the_loops_around():
    store = tirx.BufferStore(SUMS, tirx.const(0, "int32"), [OUTER + ROW, *LANES])
    with pytest.raises(BuildError, match="loops around"):
        ACCESS.walk(store)
