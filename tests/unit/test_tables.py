"""Tables as they are in a file or a pipe."""

from __future__ import annotations

from toolchain import tables
from toolchain.tables import Table


def test_columns_are_aligned():
    assert str(Table([("a", "b"), ("long", "")])) == "a     b\nlong"


def test_numbers_stand_below_each_other():
    table = Table([("mlp", "7"), ("resnet", "1234")], ("MODEL", "RUNS"), numbers=[1])
    assert str(table).splitlines() == ["MODEL   RUNS", "mlp        7", "resnet  1234"]


def test_a_column_is_left_out():
    table = Table([("1", "2", "3")], ("A", "B", "C"), numbers=[0, 2], spare=[1, 2]).without(1)
    assert (table.rows, table.head) == ([("1", "3")], ("A", "C"))
    assert (table.numbers, table.spare) == ((0, 1), (1,))


def test_several_parts_are_lines_below_each_other():
    assert tables.plain(["first", Table([("a", "b")]), "last"]) == "first\na  b\nlast"
    assert tables.plain("alone") == "alone"
