"""Scripts start behind any login shell and whatever its profile prints; a login that runs none is named."""

from __future__ import annotations

import time

import pytest

from tests.support import logins
from toolchain.errors import DeviceError
from toolchain.shell import bootstrap, open_shell
from toolchain.shell.bootstrap import Preamble

SCRIPT = """
printf '%s|' "it's" "a \\"word\\"" 'back\\slash' '$HOME' '!!' '*' "$(printf 'a\\nb')"
echo done >&2
"""
SAID = 'it\'s|a "word"|back\\slash|$HOME|!!|*|a\nb|'


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def _works(login, tmp_path):
    """Run, copy and talk, as a deploy does."""
    with open_shell(login.host, config=login.options) as shell:
        result = shell.run(SCRIPT)
        assert (result.stdout, result.stderr) == (SAID, "done\n")
        (tmp_path / "source").write_bytes(bytes(range(256)) * 300)
        shell.push(tmp_path / "source", f"{login.home}/target")
        shell.pull(f"{login.home}/target", tmp_path / "back", max_bytes=1 << 20)
        assert (tmp_path / "back").read_bytes() == (tmp_path / "source").read_bytes()
        process = shell.start('while read -r line; do echo "<$line>"; done')
        process.write("one\n")
        assert process.readline(10) == "<one>\n"
        assert process.close() == 0
        with shell.stream("exec cat") as stream:
            stream.sendall(b"x")
            assert stream.recv(1) == b"x"


@pytest.mark.parametrize("shell", ["sh", "bash", "tcsh", "csh", "zsh", "fish"])
def test_every_login_shell_runs_scripts(tmp_path, shell):
    with logins.serving(tmp_path / "sshd", shell) as login:
        _works(login, tmp_path)
        assert login.lines == []


PROFILES = {
    ("bash", ".bashrc"): "echo '*** WELCOME ***'; echo careful >&2",
    ("zsh", ".zshenv"): "printf 'no line end'",
    ("tcsh", ".tcshrc"): "echo welcome",
    ("fish", ".config/fish/config.fish"): "echo welcome",
}


@pytest.mark.parametrize(("shell", "file"), PROFILES)
def test_what_a_profile_prints_is_ignored_and_mentioned_once(tmp_path, shell, file):
    with logins.serving(tmp_path / "sshd", shell, files={file: PROFILES[shell, file] + "\n"}) as login:
        _works(login, tmp_path)
        assert len(login.lines) == 1
        assert "bytes before each command; they are ignored" in login.lines[0]


def test_a_profile_that_prints_much(tmp_path):
    with logins.serving(tmp_path / "sshd", "bash", files={".bashrc": "head -c 300000 /dev/zero\n"}) as login:
        _works(login, tmp_path)
        assert "prints 300000 bytes" in login.lines[0]


def test_a_profile_that_prints_without_an_end(tmp_path):
    with logins.serving(tmp_path / "sshd", "bash", files={".bashrc": "yes\n"}) as login:
        assert "more than" in _refused(login).message


def _refused(login, patience_s=bootstrap.START_S):
    started = time.monotonic()
    with open_shell(login.host, config=login.options) as shell:
        shell._patience_s = patience_s
        with pytest.raises(DeviceError) as caught:
            shell.run(SCRIPT)
    assert time.monotonic() - started < 60
    fault = caught.value
    assert fault.exit_code == 4
    assert fault.hint
    assert "printf" not in fault.message + fault.details + fault.hint  # none of our scripts
    return fault


@pytest.mark.parametrize("program", ["cat >/dev/null", "sh", "cat"])
def test_a_profile_that_starts_another_program(tmp_path, program):
    """It never reads our script, as a shell would and as `cat` would show."""
    with logins.serving(tmp_path / "sshd", "bash", files={".bashrc": f"echo menu; exec {program}\n"}) as login:
        fault = _refused(login, patience_s=3)
    assert "did not run a command within 3 s" in fault.message
    assert "menu" in fault.details
    assert ".bashrc" in fault.hint


def test_a_profile_that_ends(tmp_path):
    with logins.serving(tmp_path / "sshd", "bash", files={".bashrc": "echo 'no terminal' >&2; exit 3\n"}) as login:
        fault = _refused(login)
    assert "ended without running a command, with exit code 3" in fault.message
    assert "no terminal" in fault.details


def test_a_login_without_a_shell(tmp_path):
    with logins.serving(tmp_path / "sshd", "false") as login:
        fault = _refused(login)
    assert "ended without running a command, with exit code 1" in fault.message
    assert "usermod -s /bin/sh tc" in fault.hint


SFTP = ["internal-sftp", "/usr/lib/openssh/sftp-server"]


@pytest.mark.parametrize("command", SFTP)
def test_a_login_for_sftp_only(tmp_path, command):
    with logins.serving(tmp_path / "sshd", options=f"ForceCommand {command}") as login:
        fault = _refused(login, patience_s=3)
    assert "allows SFTP only" in fault.message


def test_the_line_for_the_login_shell_is_short_and_plain():
    line = bootstrap.command_line("0123456789abcdef")
    assert len(line) < 500
    assert not set(line) & set("\n!\\")
    assert line.count("'") == 2


def test_the_marker_is_found_in_pieces_and_behind_text_without_a_line_end():
    preamble = Preamble("cafe")
    assert preamble.feed(b"hello ca") == b""
    assert not preamble.passed
    assert preamble.feed(b"fe\nrest") == b"rest"
    assert preamble.passed
    assert (preamble.size, preamble.text) == (6, "hello")
    assert preamble.feed(b"cafe\n") == b"cafe\n"
