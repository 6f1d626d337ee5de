"""Tables as they are in a file or a pipe."""

from __future__ import annotations

import pytest

from toolchain import report
from toolchain.printable import printable
from toolchain.report import Bars, Cell, Facts, Notes, Page, Section, Table, Text


def test_columns_are_aligned():
    assert str(Table([("a", "b"), ("long", "")])) == "a     b\nlong"


def test_numbers_stand_below_each_other():
    table = Table([("mlp", "7"), ("resnet", "1234")], ("MODEL", "RUNS"), numbers=[1])
    assert str(table).splitlines() == ["MODEL   RUNS", "mlp        7", "resnet  1234"]


def test_a_column_is_left_out():
    table = Table([("1", "2", "3")], ("A", "B", "C"), numbers=[0, 2], spare=[1, 2]).without(1)
    assert (table.rows, table.head) == ([("1", "3")], ("A", "C"))
    assert (table.numbers, table.spare) == ((0, 1), (1,))


def test_details_are_for_pages_alone():
    table = Table([("1", Cell("2", 0.5), "3")], ("Name", "Share", "More"), numbers=[1], details=[2])
    assert report.plain(table) == "NAME  SHARE\n1         2"
    assert "More" in table.html()


def test_a_terminal_shows_some_sections_of_a_page():
    sections = [
        Section("first", [Facts([("name", "a"), ("none", "")])], on_terminal=True),
        Section("page alone", [Text("hidden")]),
        Section("nothing", [Notes([])], on_terminal=True),
        Section("last", [Text("text"), Notes(["note"]), Bars("plot", "ms", [])], on_terminal=True),
    ]
    page = Page("title", "test", None, sections)
    assert report.plain(page.printed()) == "name  a\n\ntext\nwarning: note"


def test_several_parts_are_lines_below_each_other():
    assert report.plain(["first", Table([("a", "b")]), "last"]) == "first\na  b\nlast"
    assert report.plain("alone") == "alone"


STEERING = {
    "\x1b]0;title\x07": r"\x1b]0;title\x07",
    "\x1b[2J\x9b31m": r"\x1b[2J\x9b31m",
    "\r\b\x7f\0": r"\r\x08\x7f\x00",
    "\u202egnp.exe\u2066\u200f": r"\u202egnp.exe\u2066\u200f",
    "\u2028\x85\x0b\ud800\U000e0001": r"\u2028\x85\x0b\ud800\U000e0001",
    "a\tb\nc d": "a\tb\nc d",
    "J\u00fcrgen \u4e2d\U0001f600": "J\u00fcrgen \u4e2d\U0001f600",
}


@pytest.mark.parametrize("text", STEERING)
def test_nothing_steers_a_terminal(text):
    assert printable(text) == STEERING[text]
    assert report.plain(text) == STEERING[text]
    assert report.parts([Table([(text, "")], (text, ""))]) == [
        Table([[STEERING[text], ""]], [printable(text.upper()), ""])
    ]
