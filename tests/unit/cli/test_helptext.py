"""The help of all commands: complete sentences in 80 columns, options by subject; and options that are required."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.support.commands import done, toolchain
from toolchain.cli import cli

COLUMNS = 80
VAGUE = {"TEXT", "INTEGER", "FLOAT", "PATH", "INTEGER RANGE", "FLOAT RANGE", "BOOLEAN"}


def below(command: click.Command, *command_path: str) -> dict[tuple[str, ...], click.Command]:
    """Return a command and all below it, by the names that call them."""
    commands = {command_path: command}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner
            commands |= below(inner, *command_path, name)
    return commands


COMMANDS = below(cli)
OPTIONS = [
    pytest.param(command_path, option, id=" ".join([*command_path, option.opts[-1]]))
    for command_path, command in COMMANDS.items()
    for option in command.params
    if isinstance(option, click.Option)
]


@pytest.mark.parametrize("command_path", COMMANDS, ids=" ".join)
def test_the_help_fits_the_screen_and_cuts_no_sentence(command_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    lines = done(*command_path, "--help").out.splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert not [line for line in lines if line.endswith("...") and not line.startswith("Usage:")]
    assert "<=" not in "\n".join(lines)


@pytest.mark.parametrize(("command_path", "option"), OPTIONS)
def test_an_option_says_what_it_takes_in_a_sentence(command_path, option):
    text = option.help or ""
    assert text.endswith("."), text
    assert text[0].isupper() or text.startswith("labgrid"), text
    if not option.is_flag:
        assert option.make_metavar(click.Context(COMMANDS[command_path])) not in VAGUE


def test_many_options_are_grouped_by_subject(monkeypatch):
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    heads = [line for line in done("deploy", "--help").out.splitlines() if line.endswith(":") and line[0] != " "]
    assert heads[:3] == ["Device:", "Model and inputs:", "Tuning:"]
    assert heads[-2:] == ["Results:", "Other options:"]
    assert "Options:" in done("trust", "sign", "--help").out


@pytest.mark.parametrize(
    "command_path", [path for path, command in COMMANDS.items() if len(command.params) > 12], ids=" ".join
)
def test_no_option_of_a_long_list_is_without_a_subject(command_path):
    options = [param for param in COMMANDS[command_path].params if isinstance(param, click.Option)]
    if len(options) > 12:
        assert [option.opts for option in options if not getattr(option, "subject", "")] == []


def test_json_is_the_same_option_of_every_command():
    commands = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}
    records_of = {
        path: [option.get_help_record(click.Context(command)) for option in command.params if "--json" in option.opts]
        for path, command in commands.items()
    }
    record = ("--json [FILE.json]", "Print the result as JSON, or write it to FILE.json.")
    assert {path for path, records in records_of.items() if records != [record]} == {("completion",)}


@pytest.mark.parametrize("command_path", [path for path in COMMANDS if path], ids=" ".join)
def test_a_required_option_that_is_left_out_is_missed(command_path):
    command = COMMANDS[command_path]
    required = [param for param in command.params if isinstance(param, click.Option) and param.required]
    arguments = ["1" for param in command.params if isinstance(param, click.Argument) and param.required]
    for option in required:
        options = [argument for other in required if other is not option for argument in (other.opts[0], "1")]
        result = toolchain(*command_path, *arguments, *options)
        assert result.code == 2
        assert result.err.startswith(f"error: missing option '{option.opts[0]}'"), result.err


def test_these_commands_have_options_that_are_required():
    having = {path for path, command in COMMANDS.items() for param in command.params if param.required and param.opts}
    assert {("trust", "sign"), ("trust", "verify"), ("pull",), ("run",), ("gate",), ("sdk",), ("package",)} <= having


@pytest.mark.parametrize("command_path", COMMANDS, ids=" ".join)
def test_no_path_that_is_left_out_is_the_current_folder(command_path):
    context = COMMANDS[command_path].make_context(
        command_path[-1] if command_path else "toolchain", [], resilient_parsing=True
    )
    paths = {name: value for name, value in context.params.items() if isinstance(value, Path)}
    assert Path() not in paths.values(), paths


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        ("deploy mlp --bord local", "no such option '--bord'", "did you mean --board?"),
        ("deploy mlp --json report", "got unexpected extra argument (report)", "write `--json=report` if that"),
        ("tasks mlp --json report", "got unexpected extra argument (report)", "write `--json=report` if that"),
        ("tasks mlp report --json", "got unexpected extra argument (report)", "`toolchain tasks --help`"),
        ("tune mlp --trials x", "invalid value for '--trials': 'x' is not a valid integer", "`toolchain tune --help`"),
        ("deploy", "missing argument 'MODEL-OR-PACKAGE'", "`toolchain deploy --help`"),
    ],
)
def test_clicks_errors_look_like_ours(arguments, message, hint):
    result = toolchain(*arguments.split())
    first, second, *_ = result.err.splitlines()
    assert (result.code, first) == (2, f"error: {message} (exit code 2)")
    assert second.startswith("hint: ")
    assert hint in second
    assert "Usage" not in result.err
