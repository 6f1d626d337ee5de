"""The farm that serves devices: real OpenSSH, real board servers, other users, and all that may go wrong."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import boards as virtual
from tests.support import labs, sshd, stranger
from tests.support.commands import toolchain
from tests.support.greetings import MAGIC, REFUSED, ended, greet
from tests.support.labs import (
    SOON_S,
    Lab,
    board_servers,
    command,
    daemon,
    listeners,
    runs,
    states,
    status,
    until,
)
from toolchain import board
from toolchain import devices as lab_devices
from toolchain.errors import DeviceError, InputError
from toolchain.farm import client as farm_serving
from toolchain.farm import leases, protocol
from toolchain.farm.client import FarmDevice
from toolchain.farm.leases import Lease, LeasedBoard


@pytest.fixture(scope="module")
def lab(tmp_path_factory, native):
    folder, cache = tmp_path_factory.mktemp("lab"), labs.cache(tmp_path_factory.mktemp("cache"), native)
    labs.board_types(folder, "over SSH", {"bench": labs.ours(native)})
    with contextlib.ExitStack() as stack:
        servers = tuple(stack.enter_context(sshd.running(folder / name)) for name in ("a", "b"))
        (folder / "devices.toml").write_text(
            "".join(
                f'[devices.{name}]\nboard = "bench"\nhost = "board"\nssh_config = "{name}/ssh_config"\n'
                f'root = "{folder}/{name}/store"\n'
                for name in ("a", "b")
            )
        )
        yield Lab(folder, cache, servers)


@pytest.fixture(autouse=True)
def surroundings(lab, monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_CACHE", str(lab.cache))
    monkeypatch.setenv("TOOLCHAIN_BOARDS", str(lab.folder / "boards"))
    monkeypatch.setenv("TOOLCHAIN_DEVICES", str(lab.folder / "devices.toml"))


@pytest.fixture
def farm(surroundings):
    """Serve both devices; whatever a test does to them, the next one finds them well."""
    outcome = toolchain("farm", "up", "--json")
    assert outcome.code == 0, outcome.err
    until(lambda: states() == {"a": "free", "b": "free"})
    return json.loads(outcome.out)


@pytest.fixture(scope="module", autouse=True)
def _ended(lab):
    yield
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLCHAIN_CACHE", str(lab.cache))
        assert toolchain("farm", "down").code == 0
        assert not leases.is_running()
    until(lambda: not board_servers(lab))


@contextlib.contextmanager
def session(lease: Lease, name: str) -> Iterator[socket.socket]:
    """Open a session; a server that was killed just now may take the greeting along."""
    key = next(board.key for board in lease.boards if board.name == name)
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        with lease.dial(name, SOON_S) as link:
            if code := greet(link, f"client:{key}", timeout=SOON_S):
                assert code == MAGIC
                yield link
                return
    pytest.fail(f"{name} gives no session")


def can_be_used(lease: Lease, name: str) -> bool:
    with session(lease, name):
        return True


# --- up, status, down ---


def test_up_and_status(farm):
    assert [board["state"] for board in farm["boards"]] == ["free", "free"]
    assert [board["fault"] for board in farm["boards"]] == [None, None]
    outcome = toolchain("farm", "status")
    assert (
        " ".join(outcome.out.splitlines()[0].split()) == "NAME BOARD STATE CLIENT LEASE LAST TRIAL TEMP FAILURES NOTES"
    )
    assert outcome.out.splitlines()[1].split()[:3] == ["a", "bench", "free"]
    before = daemon()
    assert toolchain("farm", "up", "a").code == 0
    assert daemon() == before


def test_nothing_listens_on_a_port(lab, farm):
    with leases.lease("bench") as lease, session(lease, "a"):
        ssh = {server.process.pid for server in lab.servers}
        pids = {os.getpid(), daemon(), *sshd.descendants(daemon()), *board_servers(lab)}
        pids |= {pid for server in ssh for pid in sshd.descendants(server)}
        assert listeners(ssh)
        assert listeners(pids - ssh) == set()


def test_one_device_goes_and_comes(lab, farm):
    assert json.loads(toolchain("farm", "down", "b", "--json").out) == ["b"]
    assert states() == {"a": "free"}
    until(lambda: not board_servers(lab, "b"))
    assert toolchain("farm", "up", "b").code == 0
    assert states() == {"a": "free", "b": "free"}


def test_a_device_that_cannot_be_reached(lab, farm):
    other = lab.folder / "other.toml"
    other.write_text(f'[devices.c]\nboard = "bench"\nhost = "me@127.0.0.1:{sshd.free_port()}"\n')
    outcome = toolchain("farm", "up", "--devices", other)
    assert (outcome.code, "cannot be reached" in outcome.err) == (4, True), outcome.err
    assert states() == {"a": "free", "b": "free", "c": "lost"}
    assert "cannot be reached" in toolchain("farm", "status").out
    with pytest.raises(DeviceError) as caught:
        leases.lease("", ["c"], wait=0.1)
    assert "cannot be reached" in caught.value.details
    assert toolchain("farm", "down", "c").code == 0


# --- leases and locks ---


def test_a_lease(farm):
    with leases.lease("bench", who="a test") as lease:
        assert [board.name for board in lease.boards] == ["a", "b"]
        assert lease.alive
        with session(lease, "a"):
            until(lambda: status()["a"]["session_since"])
        assert can_be_used(lease, "b")
        lease.report_trial("a", "conv2d", ok=True, seconds=1.5, celsius=45.0)
        lease.report_state("b", "quarantined", 3)
        until(lambda: states() == {"a": "leased", "b": "quarantined"})
        outcome = status()
        assert "a test" in outcome["a"]["hold"]["who"]
        assert (outcome["a"]["trial"]["what"], outcome["a"]["celsius"], outcome["b"]["failures"]) == ("conv2d", 45.0, 3)
        with pytest.raises(DeviceError) as caught:
            leases.lease("bench")
        assert "a test" in caught.value.details
        outcome = toolchain("farm", "lock", "a")
        assert (outcome.code, "a test" in outcome.err) == (75, True), outcome.err
    assert not lease.alive
    until(lambda: set(states().values()) == {"free"})


def test_a_board_that_the_lease_has_not(farm):
    with leases.lease("bench", ["a"]) as lease, pytest.raises(InputError, match="no board 'b'"):
        lease.dial("b", 1)


CLIENT = """
    import time
    from tests.support.greetings import MAGIC, greet
    from toolchain.farm import leases
    lease = leases.lease("bench", who="the victim")
    links = [lease.dial(one.name, 60) for one in lease.boards]
    assert [greet(link, f"client:{one.key}") for link, one in zip(links, lease.boards)] == [MAGIC] * 2
    print("ready", flush=True)
    time.sleep(600)
"""


def client(code: str) -> tuple[subprocess.Popen[str], str]:
    """Start a program of the farm's Python API; return it with what it says when it is ready."""
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    state, _, rest = process.stdout.readline().strip().partition(" ")
    assert state == "ready"
    return process, rest


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_killed_client_gives_its_boards_back(farm):
    for _ in range(3):
        victim, _ = client(CLIENT)
        assert set(states().values()) == {"leased"}
        kill(victim)
        with leases.lease("bench") as lease:
            assert [board.name for board in lease.boards] == ["a", "b"]
            assert all(can_be_used(lease, board.name) for board in lease.boards)
    until(lambda: set(states().values()) == {"free"})


def test_lock_and_release(farm):
    assert "farm release a" in toolchain("farm", "lock", "a", "--for", "2h").out
    assert states()["a"] == "locked"
    assert toolchain("farm", "lock", "a").code == 75
    with leases.lease("bench") as lease:
        assert [board.name for board in lease.boards] == ["b"]
    assert toolchain("farm", "release", "a").code == 0
    until(lambda: set(states().values()) == {"free"})


def test_a_lock_ends_by_itself(farm):
    assert toolchain("farm", "lock", "a", "--for", "1s").code == 0
    until(lambda: states()["a"] == "free")


def test_a_command_has_a_board_for_itself(farm, tmp_path):
    """And so has what it starts; an argument list of the shell's stands between the two."""
    code = f"""
        import pathlib
        from tests.support.greetings import MAGIC, greet
        from toolchain.farm import leases
        with leases.lease("bench") as lease, lease.dial("b", 60) as link:
            assert greet(link, f"client:{{lease.boards[0].key}}") == MAGIC
            pathlib.Path({str(tmp_path / "found")!r}).write_text(" ".join(one.name for one in lease.boards))
        raise SystemExit(7)
    """
    command_line = shlex.join([sys.executable, "-c", textwrap.dedent(code)])
    outcome = toolchain("farm", "lock", "b", "--", "sh", "-c", f"({command_line})")
    assert outcome.code == 7, outcome.err
    assert (tmp_path / "found").read_text() == "b"
    until(lambda: set(states().values()) == {"free"})


# --- what its owner takes back ---


def test_a_stuck_lease_is_ended_by_its_owner(lab, farm):
    """An idle session blocks its board no longer than anybody likes, and does not come back."""
    victim, _ = client(CLIENT)
    try:
        outcome = toolchain("farm", "release", "a")
        assert (outcome.code, "leased by" in outcome.out, "the victim" in outcome.out) == (0, True, True), outcome.err
        until(lambda: states() == {"a": "free", "b": "leased"})
        with leases.lease("bench", ["a"]) as lease:
            assert can_be_used(lease, "a")
    finally:
        kill(victim)


def test_who_was_released_is_told(farm):
    with leases.lease("bench", ["a"]) as lease:
        with session(lease, "a") as link:
            assert toolchain("farm", "release", "a").code == 0
            assert ended(link)
        with pytest.raises(DeviceError, match="the lease of a was ended by its owner"):
            lease.dial("a", SOON_S)
        with leases.lease("bench", ["a"]) as other:
            assert can_be_used(other, "a")
            with pytest.raises(DeviceError, match="the lease of a was ended by its owner"):
                lease.dial("a", SOON_S)
            lease.close()
            assert can_be_used(other, "a")


def test_every_lease_has_keys_of_its_own_and_leaves_nothing_running(lab, farm):
    with leases.lease("bench", ["a"]) as lease:
        old, link = lease.boards[0].key, lease.dial("a", SOON_S)
        assert greet(link, f"client:{old}") == MAGIC
        until(lambda: status()["a"]["session_since"] is not None)
    with link, leases.lease("bench", ["a"]) as lease:
        assert ended(link)
        assert lease.boards[0].key != old
        until(lambda: status()["a"]["session_since"] is None)
        with lease.dial("a", SOON_S) as again:
            assert greet(again, f"client:{old}") == REFUSED


def test_servers_have_limits(lab, farm):
    for pid in board_servers(lab):
        command_line = command(pid).split(b"\0")
        assert command_line[command_line.index(b"--session-limit") + 1] == b"3600"
        assert command_line[command_line.index(b"--idle-limit") + 1] == b"300"


# --- other users ---


def test_a_key_is_nowhere_to_be_read(lab, farm):
    with leases.lease("bench") as lease, session(lease, "a"):
        keys = [board.key for board in lease.boards]
        texts = [toolchain("farm", "status").out, toolchain("farm", "status", "--json").out, repr(lease.boards)]
        for process in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                with contextlib.suppress(OSError):  # it has ended
                    texts.append((process / name).read_text(errors="replace"))
    texts += [server.log() for server in lab.servers]
    texts += [path.read_text(errors="replace") for path in protocol.folder().glob("*.log*")]
    assert "leased by" in texts[-1]
    assert not [text for text in texts if any(key in text for key in keys)]


ATTACK = """
found = {}
for path in sys.argv[1:]:
    for name, attempt in {"list": os.listdir, "read": lambda one: open(one).read()}.items():
        try:
            attempt(path)
        except OSError as fault:
            found.setdefault(path, set()).add(type(fault).__name__)
    link = socket.socket(socket.AF_UNIX)
    try:
        link.connect(path)
    except OSError as fault:
        found[path].add(type(fault).__name__)
print(*sorted({name for names in found.values() for name in names}))
"""


def test_another_user_gets_to_no_socket_of_ours(farm, lab):
    with leases.lease("bench") as lease, session(lease, "a"):
        folder = protocol.folder()
        sockets = unix_sockets({daemon(), *board_servers(lab)})
        assert len(sockets) >= 3
        paths = {folder, folder / protocol.LOG, *sockets, *(path.parent for path in sockets)}
        assert stranger.run(ATTACK, *paths) == "PermissionError"


ASK = """
link = socket.socket(socket.AF_UNIX)
link.settimeout(30)
link.connect(sys.argv[1])
try:
    link.sendall(b'{"do": "status"}\\n')
    print(link.recv(64))
except (BrokenPipeError, ConnectionResetError):
    print(b"")
"""


def test_another_user_is_turned_away_though_a_door_was_left_open(farm):
    """By whoever restored a backup, say; and the user's own commands use such a folder no more."""
    folder = protocol.folder()
    doors = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / protocol.SOCKET)}
    doors |= {path: stat.S_IMODE(path.stat().st_mode) for path in folder.parents if not path.stat().st_mode & 0o001}
    try:
        for path in doors:
            path.chmod(doors[path] | (0o066 if path.is_socket() else 0o011))
        assert stranger.run(ASK, folder / protocol.SOCKET) == "b''"
        outcome = toolchain("farm", "status")
        assert (outcome.code, "other users can access" in outcome.err, "chmod 700" in outcome.err) == (5, True, True), (
            outcome.err
        )
    finally:
        for path, mode in doors.items():
            path.chmod(mode)
    assert "refused a process of another user" in (folder / protocol.LOG).read_text()
    assert states() == {"a": "free", "b": "free"}


def unix_sockets(pids: set[int]) -> set[Path]:
    """Name the paths on which processes listen."""
    mine = set()
    for path in [path for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir()]:
        with contextlib.suppress(OSError):  # it was closed meanwhile
            mine.add(str(path.readlink()))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    sockets = {Path(row[7]) for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in mine and row[3] == "00010000"}
    return {protocol.folder() / path.name if path.is_relative_to("/proc") else path for path in sockets}


def test_a_folder_of_another_users_is_not_used(lab, monkeypatch):
    """In a shared folder somebody may be there first, and wait for passwords and for keys."""
    with stranger.shared_folder() as shared:
        stranger.run("os.mkdir(sys.argv[1], 0o700)", shared / "serving")
        monkeypatch.setenv("TOOLCHAIN_CACHE", str(shared))
        for command in (["status"], ["lock", "a"], ["release", "a"], ["down"]):
            outcome = toolchain("farm", *command)
            assert (outcome.code, "belongs to another user" in outcome.err) == (5, True), (command, outcome.err)


# --- what goes wrong ---


def test_a_killed_server_is_started_again_with_the_same_key(lab, farm):
    with leases.lease("bench", ["a"]) as lease:
        for pid in (victims := board_servers(lab, "a")):
            os.kill(pid, signal.SIGKILL)
        assert can_be_used(lease, "a")
        assert not set(victims) & set(board_servers(lab, "a"))
    until(lambda: states()["a"] == "free")


def test_a_device_that_restarts_comes_back_into_its_lease(lab, farm):
    with leases.lease("bench", ["a"]) as lease:
        with session(lease, "a"):
            lab.servers[0].kill_sessions()
            until(lambda: not board_servers(lab, "a") or states()["a"] != "leased")
        assert can_be_used(lease, "a")
        assert states()["a"] == "leased"
    until(lambda: states()["a"] == "free")


def test_a_killed_daemon_leaves_nothing_and_is_replaced(lab, farm):
    with leases.lease("bench") as lease:
        servers = board_servers(lab)
        assert len(servers) == 2
        os.kill(daemon(), signal.SIGKILL)
        until(lambda: not any(map(runs, servers)))
        until(lambda: not lease.alive)
    assert not leases.is_running()
    assert (protocol.folder() / protocol.SOCKET).exists()
    assert toolchain("farm", "up").code == 0
    with leases.lease("bench") as lease:
        assert can_be_used(lease, "b")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_daemon_in_order(lab, farm, number):
    pid, servers = daemon(), board_servers(lab)
    os.kill(pid, number)
    until(lambda: not runs(pid), 20)
    until(lambda: not any(map(runs, servers)), 10)
    assert not (protocol.folder() / protocol.SOCKET).exists()
    assert toolchain("farm", "down").code == 0


def test_a_daemon_that_hangs_is_ended(lab, farm, monkeypatch):
    monkeypatch.setattr(farm_serving, "_ANSWER_S", 1.0)
    monkeypatch.setattr(farm_serving, "_END_S", 1.0)
    pid = daemon()
    os.kill(pid, signal.SIGSTOP)
    assert toolchain("farm", "down").code == 0
    assert not runs(pid)
    until(lambda: not board_servers(lab))


def test_two_commands_start_one_daemon(lab, surroundings):
    assert toolchain("farm", "down").code == 0
    argv = [sys.executable, "-c", "from toolchain import cli; cli.main()", "farm", "up"]
    runs_of_it = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in runs_of_it:
        _out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    assert states() == {"a": "free", "b": "free"}
    assert len(board_servers(lab)) == 2
    assert toolchain("farm", "down").code == 0  # and no second one takes over
    assert not leases.is_running()


# --- without the farm ---


def places(lab: Lab) -> list[FarmDevice]:
    kind = board.load("bench").resolved()
    devices = lab_devices.load_devices()
    return [FarmDevice(name, kind, devices[name]) for name in ("a", "b")]


def test_a_daemon_of_ones_own(lab):
    assert toolchain("farm", "down").code == 0
    until(lambda: not board_servers(lab))
    messages: list[str] = []
    with leases.private(places(lab), messages.append) as folder:
        with leases.lease("bench", folder=folder) as lease:
            assert [type(board) for board in lease.boards] == [LeasedBoard] * 2
            assert can_be_used(lease, "a")
        mine = board_servers(lab)
    assert {"a: serves", "b: serves"} <= set(messages)
    assert not folder.exists()
    assert len(mine) >= 2
    until(lambda: not any(map(runs, mine)))


def test_a_daemon_of_ones_own_that_reaches_nobody(lab):
    kind = board.load("bench").resolved()
    device = lab_devices.Device(board="bench", host=f"me@127.0.0.1:{sshd.free_port()}")
    with (
        pytest.raises(DeviceError, match="cannot be reached"),
        leases.private([FarmDevice("c", kind, device)], lambda _text: None),
    ):
        pass


PRIVATE = """
    import time
    from toolchain import board, devices as lab_devices
    from toolchain.farm import leases
    kind, devices = board.load("bench").resolved(), lab_devices.load_devices()
    with leases.private([leases.FarmDevice("a", kind, devices["a"])], lambda text: None) as folder:
        print("ready", folder, flush=True)
        time.sleep(600)
"""


def test_a_daemon_of_ones_own_dies_with_its_owner(lab):
    assert toolchain("farm", "down").code == 0
    until(lambda: not board_servers(lab))
    owner, folder = client(PRIVATE)
    assert Path(folder).exists()
    servers = board_servers(lab)
    assert len(servers) == 1
    kill(owner)
    until(lambda: not any(map(runs, servers)))
    until(lambda: not Path(folder).exists())


# --- virtual boards ---


def test_a_virtual_board_is_served(tmp_path, lab, monkeypatch):
    monkeypatch.delenv("TOOLCHAIN_BOARDS")
    rpi4 = board.load("rpi4").resolved()
    with virtual.running(tmp_path / "cache", rpi4=1) as farm:
        device = lab_devices.load_devices(farm.devices)[name := farm.name("rpi4")]
        with (
            leases.private([FarmDevice(name, rpi4, device)], lambda _text: None) as folder,
            leases.lease("rpi4", folder=folder) as lease,
        ):
            assert lease.boards[0].emulated
            assert can_be_used(lease, name)
