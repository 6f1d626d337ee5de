"""Many commands through one channel of a real SSH server."""

from __future__ import annotations

import os
import threading

import pytest

from tests.support import logins, sshd
from toolchain.errors import DeviceError
from toolchain.shell import SshOptions, open_shell


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def shell(server):
    with open_shell("board", config=SshOptions(config_file=server.config, agent=False, stall_timeout=10)) as opened:
        yield opened


def _sessions(server):
    return server.log().count("Starting session: command")


def test_commands_and_files_share_one_login(server, shell, tmp_path):
    before = _sessions(server)
    (tmp_path / "source").write_bytes(os.urandom(100_000))
    for number in range(5):
        assert shell.run(f"echo {number}; exit 3", check=False).returncode == 3
        shell.push(tmp_path / "source", f"{tmp_path}/target{number}")
        shell.pull(f"{tmp_path}/target{number}", tmp_path / "back", max_bytes=1 << 20)
        assert (tmp_path / "back").read_bytes() == (tmp_path / "source").read_bytes()
    assert _sessions(server) - before == 1


@pytest.mark.parametrize("size", [0, 1, 20, 21, 22, 23, 24, 25, 40, 1 << 20])
def test_output_of_any_length_is_whole(shell, size):
    assert shell.run(f"head -c {size} /dev/zero | tr '\\0' x; printf y >&2").stdout == "x" * size


def test_a_command_has_no_input_and_its_own_environment(shell):
    assert shell.run("cd /; x=1; umask 077; exec 7>&1; cat; exit 0").stdout == ""
    assert shell.run("echo ${x-none}; pwd").stdout.startswith("none\n")


def test_what_a_command_started_belongs_to_it(shell):
    """As in a channel of its own, a command has ended when nothing can write any more."""
    assert shell.run("(sleep 0.3; echo late) & echo early").stdout == "early\nlate\n"


def test_a_second_command_at_the_same_time_has_its_own_channel(server, shell, tmp_path):
    shell.run(":")
    before = _sessions(server)
    os.mkfifo(tmp_path / "gate")
    outputs = []
    waiting = threading.Thread(target=lambda: outputs.append(shell.run(f"cat {tmp_path}/gate").stdout))
    waiting.start()
    with (tmp_path / "gate").open("w") as gate:  # which waits for the reader
        assert shell.run("echo meanwhile").stdout == "meanwhile\n"
        gate.write("opened\n")
    waiting.join()
    assert outputs == ["opened\n"]
    assert _sessions(server) - before == 1


def test_a_file_that_is_refused_is_no_list_of_commands(server, shell, tmp_path):
    """The device gives up a copy early, and the rest of the file must not be taken for commands."""
    (tmp_path / "source").write_text(f"x run 0 t\ntouch {tmp_path}/pwned\nt\n" * 100_000)
    before = _sessions(server)
    with pytest.raises(DeviceError, match="failed with exit code"):
        shell.push(tmp_path / "source", f"{tmp_path}/missing/target")
    assert shell.run("echo well").stdout == "well\n"
    assert _sessions(server) - before == 2
    assert not (tmp_path / "pwned").exists()


def test_a_command_that_takes_too_long_ends_its_session_alone(shell):
    with pytest.raises(DeviceError, match=r"within 0\.5 s"):
        shell.run("sleep 60", timeout=0.5)
    assert shell.run("echo well").stdout == "well\n"


def test_a_device_without_setsid(tmp_path):
    """Each command has a channel of its own there."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in ("sh", "cat", "echo", "head", "sleep"):
        (path / tool).symlink_to(f"/bin/{tool}")
    with sshd.running(tmp_path / "sshd", options=f"SetEnv PATH={path}") as server:
        options = SshOptions(config_file=server.config, agent=False)
        with open_shell("board", config=options) as shell:
            for _ in range(3):
                assert shell.run("echo up").stdout == "up\n"
        assert _sessions(server) == 4


def test_a_session_that_the_server_closed_is_opened_again(server, shell):
    assert shell.run("echo one").stdout == "one\n"
    shell._session.close()
    assert shell.run("echo two").stdout == "two\n"


def test_a_command_that_a_signal_ended(tmp_path):
    with logins.serving(tmp_path / "sshd", "bash", files={".bashrc": "ulimit -f 100\n"}) as login:
        (tmp_path / "source").write_bytes(bytes(1 << 20))
        with open_shell(login.host, config=login.options) as shell:
            with pytest.raises(DeviceError, match="was ended by the signal SIGXFSZ") as caught:
                shell.push(tmp_path / "source", f"{login.home}/target")
            assert "ulimit -f" in caught.value.hint
            with pytest.raises(DeviceError, match="was ended by the signal SIGKILL") as caught:
                shell.run("kill -9 $$")
            assert "memory" in caught.value.hint


def test_a_channel_that_the_server_closed_under_a_command(tmp_path):
    """A server may end a channel that carries nothing for a while."""
    with sshd.running(tmp_path / "sshd", options="ChannelTimeout session:command=3") as server:
        options = SshOptions(config_file=server.config, agent=False)
        with (
            open_shell("board", config=options) as shell,
            pytest.raises(DeviceError, match="ended without an exit code") as caught,
        ):
            shell.run("sleep 30", check=False)
    assert "ChannelTimeout" in caught.value.hint
