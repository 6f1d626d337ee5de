from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from toolchain.cli import build, common, connection, containers, device, farm, survey, tuning, vta
from toolchain.cli.gathering import gather, option, record, same, single

FAMILIES = [
    kind
    for module in (build, connection, containers, device, farm, common, survey, tuning, vta)
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
    if all(field.metadata for field in dataclasses.fields(kind))  # and is not the result of a function
    if kind is not device.RunOptions  # which has a required option
]


@dataclass(frozen=True)
class Inner:
    much: int = option("-m", "--much", default=3, show_default=True, help="So much.")
    where: tuple[Path, ...] = option("--in", type=common.PATH, multiple=True)


@dataclass(frozen=True)
class Outer:
    first: str | None = option("--first")
    inner: Inner = record(Inner)  # noqa: RUF009 - it returns a dataclass's field
    last: bool = option("--last", is_flag=True)
    again: int = same(common.ModelOptions, "seed")


@dataclass(frozen=True)
class Twice:
    much: float = option("--much-else", default=1.0)
    inner: Inner = record(Inner)  # noqa: RUF009 - it returns a dataclass's field


def test_two_fields_of_one_name_are_refused():
    with pytest.raises(TypeError, match="Twice has more than one field much"):
        gather("asked", Twice)


def taken(kind: type, *arguments: str) -> object:
    """Return the record that a command gets which is called with these arguments."""
    calls = []

    @click.command()
    @click.argument("files", nargs=-1)
    @gather("record", kind)
    def command(files: tuple[str, ...], record: object) -> None:
        calls.append((files, record))

    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    ((files, record),) = calls
    return (files, record) if files else record


def test_a_record_in_a_record():
    assert taken(Outer) == Outer() == Outer(None, Inner(3, ()), False, 0)  # noqa: FBT003
    arguments = ["--in", "a", "f", "-m", "4", "--last", "--first", "one", "--in", "b", "--seed", "7"]
    expected = Outer("one", Inner(4, (Path("a"), Path("b"))), last=True, again=7)
    assert taken(Outer, *arguments) == (("f",), expected)


def test_help_has_the_order_of_the_fields():
    @click.command()
    @click.option("--before")
    @gather("outer", Outer)
    @click.option("--after")
    def command() -> None:
        """Do something."""

    text = CliRunner().invoke(command, ["--help"]).output
    options = re.findall(r"--(\w+)", text)
    assert options == ["before", "first", "much", "in", "last", "seed", "after", "help"]
    assert "-m, --much N   So much.  [default: 3]" in text
    assert "Do something." in text


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.__name__)
def test_a_record_made_in_code_is_what_an_empty_command_line_makes(kind):
    assert taken(kind) == kind()


def test_a_required_option_has_no_default():
    with pytest.raises(TypeError, match="--key is required"):
        option("--key", required=True, default="")


def test_one_option_of_a_family():
    @click.command()
    @single(Inner, "where")
    def command(where: tuple[Path, ...]) -> None:
        click.echo(where[0].name)

    assert CliRunner().invoke(command, ["--in", "x/y"]).output == "y\n"
