from __future__ import annotations

import subprocess
import sys

import click
import pytest

from tests.commands import toolchain
from toolchain import _commands_backends

GROUPS = {group.name: group for group in _commands_backends.groups()}


def loaded_by(*words: str) -> str:
    """Return which of the modules that take long are imported for a command line."""
    code = (
        "import sys, toolchain.cli\n"
        "try: toolchain.cli.main()\n"
        "except SystemExit as end: print('exit', end.code)\n"
        "print('loaded', [one for one in ('tvm', 'toolchain.backends') if one in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    return done.stdout.partition("exit 0\n")[2]


def test_every_group_says_in_the_table_what_it_says_itself():
    assert GROUPS
    for group in GROUPS.values():
        context = click.Context(group)
        found = group._group
        assert found.get_short_help_str() == group.get_short_help_str()
        assert group.list_commands(context) == found.list_commands(context)
        assert all(group.get_command(context, name) for name in group.list_commands(context))


def test_the_help_names_the_groups_and_loads_none():
    out = toolchain("--help").out
    for name, group in GROUPS.items():
        assert f"  {name} " in out
        assert group.help in out
    assert loaded_by("--help") == "loaded []\n"


@pytest.mark.parametrize("name", GROUPS)
def test_a_group_is_loaded_when_it_is_used(name):
    assert toolchain(name, "--help").code == 0
    assert "toolchain.backends" in loaded_by(name, "--help")


@pytest.mark.parametrize("name", GROUPS)
def test_an_unknown_command(name):
    seen = toolchain(name, "nothing")
    assert (seen.code, seen.out) == (2, "")
    assert "No such command 'nothing'" in seen.err


def test_the_commands_of_a_group_that_is_elsewhere(tmp_path, monkeypatch):
    table = tmp_path / "commands.toml"
    table.write_text('[one]\ngroup = "toolchain._commands_records:records"\nhelp = "Something."\n')
    monkeypatch.setattr(_commands_backends, "_FILE", table)
    (group,) = _commands_backends.groups()
    context = click.Context(group)
    assert (group.name, group.get_short_help_str()) == ("one", "Something.")
    assert "merge" in group.list_commands(context)
    assert group.get_command(context, "nothing") is None
