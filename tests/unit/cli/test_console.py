from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from toolchain.cli import console
from toolchain.cli.console import Console, Result
from toolchain.report import Table


@dataclass(frozen=True)
class Fact:
    name: str
    size: int


@pytest.mark.parametrize(
    ("result", "out"),
    [
        (Result("three\nlines\nof text"), "three\nlines\nof text\n"),
        (Result(Table([("a", "1")], ("NAME", "SIZE"))), "NAME  SIZE\na     1\n"),
        (Result([Table([("a", "1")]), "", "b"], {"a": 1}), "a  1\n\nb\n"),
        (Result("", {"a": 1}), ""),
    ],
)
def test_results_for_people(result, out, capsys):
    console.print_result(result)
    assert capsys.readouterr() == (out, "")


@pytest.mark.parametrize(
    ("document", "expected"),
    [([Fact("a", 1)], [{"name": "a", "size": 1}]), ({"found": None}, {"found": None}), ((), [])],
)
def test_results_for_programs(document, expected, capsys):
    console.print_result(Result("text", document, as_json=True))
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == (expected, "")


def test_progress_leaves_results_alone(capsys):
    Console().say("at work")
    Console().redraw("")
    console.print_result(Result("done"))
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("done\n", "at work")
