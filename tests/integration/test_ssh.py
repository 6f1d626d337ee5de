"""SshShell against a real OpenSSH server on this host."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import links, sshd
from tests.support.commands import toolchain
from tests.support.paths import ROOT
from toolchain.errors import DeviceError, VerificationError
from toolchain.shell import SshOptions, open_shell
from toolchain.shell.bounds import STDERR_KEPT


@pytest.fixture(scope="module", autouse=True)
def _no_keys_of_the_tester(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture(scope="module")
def options(server):
    return SshOptions(
        known_hosts=(server.known_hosts,),
        identity=server.key_file,
        connect_timeout=5,
        stall_timeout=10,
    )


@pytest.fixture(scope="module")
def board(server, options):
    with open_shell(server.host, config=options) as shell:
        yield shell


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    path = tmp_path_factory.mktemp("big") / "random"
    path.write_bytes(os.urandom(20 << 20))
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _gone(pid: int, seconds: float = 6) -> bool:
    """Tell whether a process ends in time; a zombie that waits for init has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


def _pid(path: Path) -> int:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path} holds no process id")


# --- commands ---


def test_name_and_connect_time(server, options):
    open_shell(server.host, config=options).close()
    started = time.monotonic()
    with open_shell(server.host, config=options) as shell:
        assert time.monotonic() - started < 10
        assert shell.name == server.host


def test_run(board):
    result = board.run("printf 'caf\\303\\251\\n'; echo it\\'s \"$HOME\" >&2; exit 3", check=False)
    assert (result.returncode, result.stdout) == (3, "café\n")
    assert result.stderr.startswith("it's /")


def test_run_failure_carries_code_and_stderr(board):
    with pytest.raises(DeviceError, match="exit code 7") as caught:
        board.run("echo because >&2; exit 7")
    assert "because" in caught.value.details


def test_run_has_empty_input_and_signals_have_codes(board):
    assert board.run("cat; echo done").stdout == "done\n"
    assert board.run("kill -KILL $$", check=False).returncode == 128 + signal.SIGKILL


def test_run_big_output_on_both_streams(board):
    script = "head -c 30000000 /dev/zero | tr '\\0' x; head -c 20000000 /dev/zero | tr '\\0' y >&2"
    result = board.run(script, max_bytes=32 << 20)
    assert result.stdout == "x" * 30_000_000
    assert result.stderr == "y" * STDERR_KEPT


def test_many_commands_leave_no_channels_and_no_processes(server, board):
    for number in range(30):
        assert board.run(f"echo {number}").stdout == f"{number}\n"
    time.sleep(0.5)
    remaining = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in sshd.descendants(server.process.pid)]
    assert set(remaining) <= {"sshd", "sshd-session", "sh"}
    assert remaining.count("sh") <= 1  # which waits for the next command


def test_timeout_ends_the_remote_command(board, tmp_path):
    started = time.monotonic()
    with pytest.raises(DeviceError, match=r"within 0\.5 s") as caught:
        board.run(
            f"echo $$ > {tmp_path}/shell; echo hint >&2; sleep 300 & echo $! > {tmp_path}/child; wait", timeout=0.5
        )
    assert time.monotonic() - started < 60
    assert "hint" in caught.value.details
    assert _gone(_pid(tmp_path / "child"))
    assert _gone(_pid(tmp_path / "shell"))
    assert board.run("echo again").stdout == "again\n"


def test_timeout_ends_a_command_that_ignores_term(board, tmp_path):
    with pytest.raises(DeviceError, match="did not finish"):
        board.run(f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 1; done", timeout=0.5)
    assert _gone(_pid(tmp_path / "pid"))


def test_bytes_are_socket_bytes(server, options):
    with open_shell(server.host, config=options) as shell:
        connected = shell.bytes_sent, shell.bytes_received
        shell.run("head -c 1000000 /dev/zero")
        assert 1000 < connected[0] < 6000
        assert 1000 < connected[1] < 6000
        assert 1_000_000 < shell.bytes_received < 1_020_000


# --- files ---


def test_push_resume_pull(board, big, tmp_path):
    target, back = tmp_path / "it's here", tmp_path / "back"
    target.write_bytes(big.read_bytes()[: 5 << 20])
    sizes: list[int] = []
    before = board.bytes_sent
    board.push(big, str(target), offset=5 << 20, progress=sizes.append)
    assert _digest(target) == _digest(big)
    assert sizes == sorted(sizes)
    assert sizes[-1] == 20 << 20
    assert 15 << 20 < board.bytes_sent - before < (15 << 20) * 1.01
    board.pull(str(target), back, max_bytes=64 << 20)
    assert _digest(back) == _digest(big)


def test_push_is_binary_safe(board, tmp_path):
    data = bytes(range(256)) * 3 + b"\r\n\0\xff"
    (tmp_path / "source").write_bytes(data)
    board.push(tmp_path / "source", str(tmp_path / "target"))
    board.push(tmp_path / "source", str(tmp_path / "target"), offset=len(data) - 4)
    assert (tmp_path / "target").read_bytes() == data + data[-4:]


def test_push_of_nothing_creates_the_file(board, tmp_path):
    (tmp_path / "empty").touch()
    board.push(tmp_path / "empty", str(tmp_path / "target"))
    assert (tmp_path / "target").read_bytes() == b""


@pytest.mark.parametrize(
    ("target", "message"),
    [("/dev/full", "No space left on device"), ("/proc/new", ""), ("/no/such/folder/x", "")],
)
def test_push_reports_what_the_device_says(board, big, target, message):
    started = time.monotonic()
    with pytest.raises(DeviceError, match="exit code") as caught:
        board.push(big, target)
    assert message in caught.value.details
    assert target in caught.value.details
    assert time.monotonic() - started < 60


def test_push_through_rekeying(tmp_path, big, options):
    with sshd.running(tmp_path / "sshd", options="RekeyLimit 3M") as server:
        mine = replace(options, known_hosts=(server.known_hosts,), identity=server.key_file)
        with open_shell(server.host, config=mine) as shell:
            shell.push(big, str(tmp_path / "target"))
            shell.pull(str(tmp_path / "target"), tmp_path / "back", max_bytes=64 << 20)
    assert _digest(tmp_path / "back") == _digest(big)


def test_pull_failure_leaves_the_target_alone(board, tmp_path):
    (tmp_path / "target").write_text("old")
    with pytest.raises(DeviceError, match="exit code") as caught:
        board.pull("/no/such/file", tmp_path / "target", max_bytes=64 << 20)
    assert "/no/such/file" in caught.value.details
    assert (tmp_path / "target").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


# --- host keys ---


def _forget(known_hosts: Path, text: str) -> Path:
    known_hosts.write_text(text)
    return known_hosts


def _refused(server, options):
    """Connect, and return the refusal, after a look at the server's log: it must have seen no user name."""
    before = len(server.log())
    with pytest.raises(VerificationError) as caught:
        open_shell(server.host, config=options)
    deadline = time.monotonic() + 5
    while "preauth" not in (log := server.log()[before:]) and time.monotonic() < deadline:
        time.sleep(0.05)
    # A client that has named its user is logged as "authenticating user".
    assert "Connection closed by 127.0.0.1" in log
    assert "authenticating user" not in log
    listed = subprocess.run(["ssh-keygen", "-lf", server.host_key], capture_output=True, text=True, check=True)
    assert listed.stdout.split()[1] in caught.value.message
    assert "ssh-ed25519" in caught.value.message
    assert f"[127.0.0.1]:{server.port}" in caught.value.message
    return caught.value


def _obey(hint: str) -> None:
    """Run the commands of a hint, as a user would who has compared the fingerprints."""
    for line in hint.splitlines():
        if line.startswith("ssh-"):
            subprocess.run(["sh", "-c", line], check=True, capture_output=True)


def test_unknown_key_is_refused_and_the_hint_works(server, options, tmp_path):
    mine = replace(options, known_hosts=(tmp_path / "known hosts",))
    fault = _refused(server, mine)
    assert "not in a known_hosts file" in fault.message
    assert f"ssh-keyscan -p {server.port} -t ed25519 127.0.0.1 >> " in fault.hint
    _obey(fault.hint)
    open_shell(server.host, config=mine).close()


def test_no_key_is_appended_to_a_device_of_this_host(server, options):
    fault = _refused(server, replace(options, known_hosts=(Path("/dev/null"),)))
    assert "/dev/null" not in fault.hint
    assert ">> ~/.ssh/known_hosts" in fault.hint
    assert "--known-hosts" in fault.hint


def test_changed_key_is_refused_and_the_hint_works(server, options, tmp_path):
    other = Path(f"{sshd.keygen(tmp_path / 'other')}.pub").read_text()
    known_hosts = _forget(tmp_path / "known", f"# lab\n[127.0.0.1]:{server.port} {other}")
    mine = replace(options, known_hosts=(known_hosts,))
    fault = _refused(server, mine)
    assert f"{known_hosts}:2" in fault.details
    assert f"ssh-keygen -f {known_hosts} -R '[127.0.0.1]:{server.port}'" in fault.hint
    _obey(fault.hint)
    open_shell(server.host, config=mine).close()


def test_key_of_another_type_counts_as_changed(server, options, tmp_path):
    other = Path(f"{sshd.keygen(tmp_path / 'other', 'ecdsa')}.pub").read_text()
    known_hosts = _forget(tmp_path / "known", f"[127.0.0.1]:{server.port} {other}")
    assert "not the known key" in _refused(server, replace(options, known_hosts=(known_hosts,))).message


def test_changed_server_on_the_same_port(options, tmp_path):
    with sshd.running(tmp_path / "first") as first:
        known_hosts = _forget(tmp_path / "known", first.known_hosts.read_text())
        mine = replace(options, known_hosts=(known_hosts,), identity=first.key_file)
        open_shell(first.host, config=mine).close()
    with sshd.running(tmp_path / "second", port=first.port) as second:
        assert "not the known key" in _refused(second, mine).message


def test_revoked_key_is_refused_even_if_trusted(server, options, tmp_path):
    trusted = server.known_hosts.read_text()
    known_hosts = _forget(tmp_path / "known", f"{trusted}@revoked * {trusted.partition(' ')[2]}")
    fault = _refused(server, replace(options, known_hosts=(known_hosts,)))
    assert "revoked" in fault.message
    assert f"{known_hosts}:2" in fault.details


def test_hashed_known_hosts(server, options, tmp_path):
    known_hosts = _forget(tmp_path / "known", server.known_hosts.read_text())
    subprocess.run(["ssh-keygen", "-H", "-f", known_hosts], check=True, capture_output=True)
    assert "127.0.0.1" not in known_hosts.read_text()
    open_shell(server.host, config=replace(options, known_hosts=(known_hosts,))).close()


def test_known_rsa_key_is_asked_for(options, tmp_path):
    rsa = sshd.keygen(tmp_path / "rsa", "rsa")
    extra = sshd.keygen(tmp_path / "ed25519")
    with sshd.running(tmp_path / "sshd", host_key=rsa, options=f"HostKey {extra}") as server:
        mine = replace(options, known_hosts=(server.known_hosts,), identity=server.key_file)
        open_shell(server.host, config=mine).close()


# --- configuration and jumps ---


def test_config_alias(server):
    config = SshOptions(config_file=server.config)
    with open_shell("board", config=config) as shell:
        assert shell.name == server.host
        assert shell.run("echo hi").stdout == "hi\n"


def test_host_key_alias_and_its_hint(server, tmp_path):
    config = tmp_path / "config"
    text = server.config.read_text().replace(str(server.known_hosts), str(tmp_path / "known"))
    config.write_text(f"{text}  HostKeyAlias lab-board\n")
    mine = SshOptions(config_file=config)
    with pytest.raises(VerificationError, match="lab-board") as caught:
        open_shell("board", config=mine)
    _obey(caught.value.hint)
    assert (tmp_path / "known").read_text().startswith("lab-board ssh-ed25519 ")
    open_shell("board", config=mine).close()


def test_match_exec_finds_the_device(server, tmp_path):
    """Which of two addresses a device has depends on where this host is, say."""
    config = tmp_path / "config"
    keys = server.config.read_text().replace("Host board", "Host *").replace(f"  Port {server.port}\n", "")
    config.write_text(
        f'Match originalhost board exec "test -e {tmp_path}/home"\n  Port {server.port}\n'
        f'Match originalhost board !exec "test -e {tmp_path}/home"\n  Port {sshd.free_port()}\n{keys}'
    )
    with pytest.raises(DeviceError, match="refused"):
        open_shell("board", config=SshOptions(config_file=config))
    (tmp_path / "home").touch()
    with open_shell("board", config=SshOptions(config_file=config)) as shell:
        assert shell.name == server.host


def test_a_list_that_nobody_named_runs_no_command(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOOLCHAIN_DEVICES", raising=False)
    (tmp_path / "config").write_text(f"{server.config.read_text()}  ProxyCommand touch {tmp_path}/ran; nc %h %p\n")
    (tmp_path / "devices.toml").write_text('[a]\nboard = "rpi4"\nhost = "board"\nssh_config = "config"\n')
    command = ("status", "--board", "rpi4", "--host", "a", "--root", tmp_path / "device")
    outcome = toolchain(*command)
    assert (outcome.code, "has ssh_config, which runs commands" in outcome.err) == (2, True)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "config").write_text(server.config.read_text())
    outcome = toolchain(*command, "--devices", "devices.toml")
    assert outcome.code == 0, outcome.err


@pytest.fixture
def jumped(server, tmp_path):
    """A second server that is reached through the first, and a configuration that says so."""
    with sshd.running(tmp_path / "second") as second:
        known_hosts = _forget(tmp_path / "known", server.known_hosts.read_text() + second.known_hosts.read_text())
        config = tmp_path / "config"
        config.write_text(
            f"Host far\n  HostName 127.0.0.1\n  Port {second.port}\n  IdentityFile {second.key_file}\n"
            f"  ProxyJump near\nHost near\n  HostName 127.0.0.1\n  Port {server.port}\n"
            f"  IdentityFile {server.key_file}\nHost *\n  User {server.user}\n  UserKnownHostsFile {known_hosts}\n"
            "  GlobalKnownHostsFile none\n"
        )
        yield second, known_hosts, SshOptions(config_file=config, connect_timeout=5)


def test_jump_host(jumped, big, tmp_path):
    second, _, mine = jumped
    before = second.log().count("Accepted publickey")
    with open_shell("far", config=mine) as shell:
        assert shell.name == second.host
        assert shell.run("echo hi").stdout == "hi\n"
        shell.push(big, str(tmp_path / "target"))
    assert _digest(tmp_path / "target") == _digest(big)
    assert second.log().count("Accepted publickey") == before + 1


def test_jump_host_keys_are_checked(server, jumped):
    second, known_hosts, mine = jumped
    known_hosts.write_text(second.known_hosts.read_text())
    with pytest.raises(VerificationError) as caught:
        open_shell("far", config=mine)
    assert f"ssh-keyscan -p {server.port} " in caught.value.hint
    known_hosts.write_text(server.known_hosts.read_text())
    with pytest.raises(VerificationError) as caught:
        open_shell("far", config=mine)
    command = caught.value.hint.splitlines()[-1]
    assert f"-J near -p {second.port} {second.user}@far" in command
    command = command.replace("StrictHostKeyChecking=ask", "StrictHostKeyChecking=accept-new")
    subprocess.run(["sh", "-c", command], check=True, capture_output=True)
    open_shell("far", config=mine).close()


def test_jump_cannot_reach(jumped):
    _, _, mine = jumped
    with pytest.raises(DeviceError, match="cannot reach"):
        open_shell(f"far:{sshd.free_port()}", config=mine)


# --- what goes wrong later ---


@pytest.fixture
def mortal(tmp_path, options):
    """A connection to a server of its own, which the test may kill."""
    with sshd.running(tmp_path / "mortal") as server:
        mine = replace(options, known_hosts=(server.known_hosts,), identity=server.key_file)
        with open_shell(server.host, config=mine) as shell:
            yield server, shell


def test_server_dies_in_a_push(mortal, big, tmp_path):
    server, shell = mortal
    target = tmp_path / "target"

    def kill(sent: int) -> None:
        if sent >= 5 << 20:
            server.kill_sessions()

    started = time.monotonic()
    with pytest.raises(DeviceError, match="was lost") as caught:
        shell.push(big, str(target), progress=kill)
    assert caught.value.hint
    assert time.monotonic() - started < 60
    content = target.read_bytes()
    assert 0 < len(content) < 20 << 20
    assert big.read_bytes().startswith(content)
    with pytest.raises(DeviceError, match="was lost"):
        shell.run("true")


def test_server_dies_in_a_run(mortal):
    server, shell = mortal
    killer = threading.Timer(0.5, server.kill_sessions)
    killer.start()
    started = time.monotonic()
    with pytest.raises(DeviceError, match="was lost"):
        shell.run("sleep 120")
    assert time.monotonic() - started < 60


def test_server_dies_under_a_process(mortal):
    server, shell = mortal
    process = shell.start("echo ready; sleep 60")
    assert process.readline(5) == "ready\n"
    server.kill_sessions()
    with pytest.raises(DeviceError, match="was lost"):
        process.readline(5)
    process.close()


def test_frozen_server(mortal):
    server, shell = mortal
    server.freeze_sessions()
    started = time.monotonic()
    with pytest.raises(DeviceError):
        shell.run("true", timeout=0.5)
    assert time.monotonic() - started < 60


# --- processes ---


def test_process_talks_in_lines(board):
    process = board.start('while read -r line; do echo "<$line>"; done; echo warned >&2; exit 5')
    process.write("one\ntwo\n")
    assert process.readline(5) == "<one>\n"
    assert process.readline(5) == "<two>\n"
    with pytest.raises(DeviceError, match="no line within"):
        process.readline(0.1)
    assert process.close() == 5
    assert process.close() == 5


def test_process_end_of_output(board):
    process = board.start("printf 'no newline'; echo why >&2")
    assert process.readline(5) == "no newline"
    assert process.readline(5) == ""
    assert process.stderr == "why\n"
    assert process.close() == 0


def test_process_leaves_nothing_behind(board, tmp_path):
    process = board.start(f"sleep 300 & echo $! > {tmp_path}/pid; echo ready; exec sleep 300")
    assert process.readline(5) == "ready\n"
    assert process.close() is None
    assert _gone(_pid(tmp_path / "pid"))


def test_process_dies_with_its_client(server, tmp_path):
    code = (
        "import sys\nfrom pathlib import Path\nfrom toolchain.shell import *\n"
        "shell = open_shell('board', config=SshOptions(config_file=Path(sys.argv[1])))\n"
        f"held = shell.start('echo $$ > {tmp_path}/pid; echo ready; exec sleep 300')\n"
        "print(held.readline(5), flush=True)\nimport time; time.sleep(60)\n"
    )
    root = ROOT
    client = subprocess.Popen([sys.executable, "-c", code, server.config], cwd=root, stdout=subprocess.PIPE)
    try:
        assert client.stdout.readline() == b"ready\n"
        pid = _pid(tmp_path / "pid")
        assert not _gone(pid, 0.2)
    finally:
        client.kill()
        client.wait()
        client.stdout.close()
    assert _gone(pid)


def test_streams_that_were_closed_do_not_count(board):
    """OpenSSH runs ten commands of a connection at once, and takes a moment to see that one has ended."""
    for _ in range(50):
        board.stream("exec cat").close()


def test_a_server_that_runs_nothing(tmp_path, options):
    with sshd.running(tmp_path / "sshd", options="MaxSessions 0") as server:
        keys = replace(options, known_hosts=(server.known_hosts,), identity=server.key_file)
        with open_shell(server.host, config=keys) as shell:
            with pytest.raises(DeviceError, match="refuses") as caught:
                shell.stream("exec cat", timeout=0.2)
            assert "MaxSessions" in caught.value.hint


def test_stream_ends_when_its_shell_is_closed(server, options):
    with open_shell(server.host, config=options) as shell, shell.stream("exec cat") as stream:
        stream.sendall(b"x")
        assert stream.recv(1) == b"x"
        shell.close()
        assert stream.recv(1) == b""
        with pytest.raises(DeviceError):
            shell.stream("cat")


def test_a_reset_while_a_command_starts(server, options, monkeypatch):
    def reset(*_arguments):
        raise ConnectionResetError(104, "Connection reset by peer")

    with open_shell(server.host, config=options) as shell:
        monkeypatch.setattr("paramiko.Channel.exec_command", reset)
        for call in (lambda: shell.run("true"), lambda: shell.start("cat"), lambda: shell.stream("cat")):
            with pytest.raises(DeviceError, match="was lost while starting a command"):
                call()


# --- slow links ---


@pytest.fixture
def far(server, options, tmp_path):
    """The server behind 200 kB/s and 0.2 s there and back, with all the buffers that a network has on the way."""
    with links.slow(server.port, rate=200_000, delay=0.1) as port:
        keys = server.known_hosts.read_text().partition(" ")[2]
        known_hosts = _forget(tmp_path / "known", f"[127.0.0.1]:{port} {keys}")
        mine = replace(options, known_hosts=(known_hosts,), connect_timeout=30, stall_timeout=3)
        with open_shell(f"{server.user}@127.0.0.1:{port}", config=mine) as shell:
            yield shell


def test_what_still_is_on_its_way_is_no_stall(far, tmp_path):
    """All of it is sent within a moment, as far as this host can see, and is there after three times the limit."""
    (tmp_path / "source").write_bytes(os.urandom(2 << 20))
    started = time.monotonic()
    far.push(tmp_path / "source", str(tmp_path / "target"))
    assert time.monotonic() - started > 9
    assert _digest(tmp_path / "target") == _digest(tmp_path / "source")
    far.pull(str(tmp_path / "target"), tmp_path / "back", max_bytes=2 << 20)
    assert _digest(tmp_path / "back") == _digest(tmp_path / "source")


def test_a_device_that_stops_reading_is_a_stall_on_a_slow_link_too(far, tmp_path):
    far.run(f"mkfifo {tmp_path}/full; (exec >/dev/null 2>&1; sleep 60 <{tmp_path}/full) </dev/null &", timeout=30)
    (tmp_path / "source").write_bytes(bytes(1 << 20))
    started = time.monotonic()
    with pytest.raises(DeviceError, match="moved no data for 3 s"):
        far.push(tmp_path / "source", f"{tmp_path}/full")
    assert time.monotonic() - started < 60
