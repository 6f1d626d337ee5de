"""The farm that serves devices: real OpenSSH, TVM's real tracker, real board servers, and all that may go wrong."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import boards as virtual
from tests import sshd
from tests.commands import toolchain
from toolchain import _farm_leases, _farm_protocol, _farm_serving, board, device_runtime, files, remote
from toolchain._farm_leases import LeasedBoard
from toolchain._farm_serving import Place
from toolchain.errors import DeviceError

HERE = platform.machine()
SOON_S = 60.0


@dataclass(frozen=True)
class Lab:
    """Two devices on this host, each with an SSH server of its own, and a cache with nobody else's farm."""

    folder: Path
    cache: Path
    servers: tuple[sshd.Server, ...]


@pytest.fixture(scope="module")
def lab(tmp_path_factory, native):
    folder, cache = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("cache")
    device_runtime.build(native.triple, native.machine)
    for name in ("device", "zig"):  # what takes minutes to build is the user's
        (cache / name).symlink_to(files.cache_root() / name)
    (folder / "boards").mkdir()
    (folder / "boards" / "bench.toml").write_text(
        f'description = "this machine, over SSH"\nconnection = "ssh"\nmachine = "{HERE}"\ntriple = "{native.triple}"\n'
        '[target]\nmcpu = "generic"\n'
    )
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
    seen = toolchain("farm", "up", "--json")
    assert seen.code == 0, seen.err
    until(lambda: states() == {"a": "free", "b": "free"})
    return json.loads(seen.out)


@pytest.fixture(scope="module", autouse=True)
def _ended(lab):
    yield
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLCHAIN_CACHE", str(lab.cache))
        assert toolchain("farm", "down").code == 0
        assert not _farm_leases.serving()
    until(lambda: not board_servers(lab))


def until(condition: Callable[[], object], seconds: float = SOON_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.05)


def status() -> dict[str, dict[str, Any]]:
    seen = toolchain("farm", "status", "--json")
    assert seen.code == 0, seen.err
    return {one["name"]: one for one in json.loads(seen.out)["boards"]}


def states() -> dict[str, str]:
    return {name: one["state"] for name, one in status().items()}


def keeper() -> int:
    with _farm_serving.connected() as link:
        return link.peer


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that only waits for its parent to notice its end does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def board_servers(lab: Lab, name: str = "") -> list[int]:
    """Name the processes of the board servers on the devices, or on one."""
    mark = f"{lab.folder}/{name}".encode()
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if (words := command(pid)).startswith(mark) and b"--control" in words and runs(pid)]


@contextlib.contextmanager
def session(tracker: tuple[str, int], key: str) -> Iterator[Any]:
    """Open a session, and see that it works."""
    with remote.request(*tracker, key, timeout_s=SOON_S, expected=remote.versions(HERE)) as opened:
        assert works(opened)
        yield opened


def works(opened: Any) -> bool:
    import tvm

    sent = np.arange(7, dtype=np.float32)
    return bool(np.array_equal(tvm.runtime.tensor(sent, opened.rpc.cpu(0)).numpy(), sent))


def can_be_used(tracker: tuple[str, int], key: str) -> bool:
    with session(tracker, key):
        return True


# --- up, status, down ---


def test_up_and_status(farm):
    assert [one["state"] for one in farm["boards"]] == ["free", "free"]
    assert [one["fault"] for one in farm["boards"]] == [None, None]
    seen = toolchain("farm", "status")
    assert " ".join(seen.out.splitlines()[0].split()) == "NAME BOARD KEY STATE CLIENT LEASE LAST TRIAL TEMP FAILURES"
    assert seen.out.splitlines()[1].split()[:4] == ["a", "bench", "bench", "free"]
    before = keeper()
    assert toolchain("farm", "up", "a").code == 0
    assert keeper() == before


def test_a_client_without_a_lease_uses_the_tracker(farm):
    tracker = tuple(farm["tracker"])
    with session(tracker, "bench"):
        until(lambda: sorted(states().values()) == ["busy", "free"])
        assert any(one["session_since"] for one in status().values())
    until(lambda: set(states().values()) == {"free"})


def test_nothing_listens_off_loopback(lab, farm):
    with _farm_leases.lease("bench") as lease, session(lease.tracker, lease.boards[0].key):
        pids = {keeper(), *sshd.descendants(keeper()), *board_servers(lab)}
        pids |= {pid for server in lab.servers for pid in sshd.descendants(server.process.pid)}
        pids |= {int(path.name) for path in Path("/proc").glob("[0-9]*") if b"tvm.exec" in command(int(path.name))}
        found = listeners(pids)
    # The tracker, the devices' servers, the ways to them, and their ways back to the tracker.
    assert len(found) >= 7
    assert {address for address, _port in found} <= {"0100007F", "0200007F"}


def listeners(pids: set[int]) -> set[tuple[str, str]]:
    """Name what processes listen on, as the kernel writes it."""
    mine = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            mine |= {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    found = set()
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
        found |= {tuple(row[1].split(":")) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in mine}
    return found


def test_one_device_goes_and_comes(lab, farm):
    assert json.loads(toolchain("farm", "down", "b", "--json").out) == ["b"]
    assert states() == {"a": "free"}
    until(lambda: not board_servers(lab, "b"))
    assert toolchain("farm", "up", "b").code == 0
    assert states() == {"a": "free", "b": "free"}


def test_a_device_that_cannot_be_reached(lab, farm):
    other = lab.folder / "other.toml"
    other.write_text(f'[devices.c]\nboard = "bench"\nhost = "me@127.0.0.1:{sshd.free_port()}"\n')
    seen = toolchain("farm", "up", "--devices", other)
    assert (seen.code, "cannot be reached" in seen.err) == (4, True), seen.err
    assert states() == {"a": "free", "b": "free", "c": "lost"}
    assert "cannot be reached" in toolchain("farm", "status").out
    with pytest.raises(DeviceError) as caught:
        _farm_leases.lease("", ["c"], wait=0.1)
    assert "cannot be reached" in caught.value.details
    assert toolchain("farm", "down", "c").code == 0


def test_a_stock_server_is_listed_with_a_warning(farm):
    port = sshd.free_port()
    words = ["--host", "127.0.0.1", "--port", port, "--port-end", port + 1, "--key", "bench"]
    words += ["--tracker", ":".join(map(str, farm["tracker"]))]
    with subprocess.Popen(
        [sys.executable, "-m", "tvm.exec.rpc_server", *map(str, words)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as server:
        try:
            until(lambda: f"127.0.0.1:{port}" in toolchain("farm", "status").out)
            out = toolchain("farm", "status").out
            row = next(line.split() for line in out.splitlines() if line.startswith(f"127.0.0.1:{port}"))
            assert row[1:3] == ["bench", "stock"]
            assert f"warning: 127.0.0.1:{port} serves bench" in out
        finally:
            os.killpg(server.pid, signal.SIGKILL)
    until(lambda: f"127.0.0.1:{port}" not in toolchain("farm", "status").out)


# --- leases and locks ---


def test_a_lease(farm):
    with _farm_leases.lease("bench", who="a test") as lease:
        assert [one.name for one in lease.boards] == ["a", "b"]
        assert lease.alive
        for one in lease.boards:
            assert can_be_used(lease.tracker, one.key)
        lease.report_trial("a", "conv2d", ok=True, seconds=1.5, celsius=45.0)
        lease.report_state("b", "quarantined", 3)
        until(lambda: states() == {"a": "leased", "b": "quarantined"})
        seen = status()
        assert "a test" in seen["a"]["hold"]["who"]
        assert (seen["a"]["trial"]["what"], seen["a"]["celsius"], seen["b"]["failures"]) == ("conv2d", 45.0, 3)
        with pytest.raises(DeviceError) as caught:
            _farm_leases.lease("bench")
        assert "a test" in caught.value.details
        seen = toolchain("farm", "lock", "a")
        assert (seen.code, "a test" in seen.err) == (4, True), seen.err
    assert not lease.alive
    until(lambda: set(states().values()) == {"free"})
    assert can_be_used(tuple(farm["tracker"]), "bench")


CLIENT = """
    import time
    from toolchain import _farm_leases, remote
    lease = _farm_leases.lease("bench", who="the victim")
    keys = [one.key for one in lease.boards]
    sessions = [remote.request(*lease.tracker, key, timeout_s=60, expected=remote.versions()) for key in keys]
    print("ready", flush=True)
    time.sleep(600)
"""


def client(code: str) -> tuple[subprocess.Popen[str], str]:
    """Start a program of the farm's Python API; return it with what it says when it is ready."""
    argv = [sys.executable, "-c", textwrap.dedent(code)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    word, _, rest = process.stdout.readline().strip().partition(" ")
    assert word == "ready"
    return process, rest


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_killed_client_gives_its_boards_back(farm):
    for _ in range(3):
        victim, _ = client(CLIENT)
        assert set(states().values()) == {"leased"}
        kill(victim)
        with _farm_leases.lease("bench") as lease:
            assert [one.name for one in lease.boards] == ["a", "b"]
            for one in lease.boards:
                assert can_be_used(lease.tracker, one.key)
    until(lambda: set(states().values()) == {"free"})


def test_lock_and_release(farm):
    assert "farm release a" in toolchain("farm", "lock", "a", "--for", "2h").out
    assert states()["a"] == "locked"
    assert toolchain("farm", "lock", "a").code == 4
    with _farm_leases.lease("bench") as lease:
        assert [one.name for one in lease.boards] == ["b"]
        assert toolchain("farm", "release", "b").code == 4
    assert toolchain("farm", "release", "a").code == 0
    until(lambda: set(states().values()) == {"free"})


def test_a_lock_ends_by_itself(farm):
    assert toolchain("farm", "lock", "a", "--for", "1s").code == 0
    until(lambda: states()["a"] == "free")


def test_a_command_has_a_board_for_itself(farm, tmp_path):
    code = f"""
        import os, pathlib
        from toolchain import remote
        place = [os.environ["TVM_TRACKER_" + name] for name in ("HOST", "PORT", "KEY")]
        remote.request(place[0], int(place[1]), place[2], timeout_s=60, expected=remote.versions()).close()
        pathlib.Path({str(tmp_path / "found")!r}).write_text(place[2])
        raise SystemExit(7)
    """
    seen = toolchain("farm", "lock", "b", "--", sys.executable, "-c", textwrap.dedent(code))
    assert seen.code == 7, seen.err
    assert (tmp_path / "found").read_text().startswith("b.")
    until(lambda: set(states().values()) == {"free"})


# --- what goes wrong ---


def test_a_killed_server_is_started_again_with_the_same_private_key(lab, farm):
    with _farm_leases.lease("bench", ["a"]) as lease:
        for pid in (victims := board_servers(lab, "a")):
            os.kill(pid, signal.SIGKILL)
        assert can_be_used(lease.tracker, lease.boards[0].key)
        assert not set(victims) & set(board_servers(lab, "a"))
    until(lambda: states()["a"] == "free")


def test_a_device_that_restarts_comes_back_into_its_lease(lab, farm):
    with _farm_leases.lease("bench", ["a"]) as lease:
        with session(lease.tracker, lease.boards[0].key):
            lab.servers[0].kill_sessions()
            until(lambda: not board_servers(lab, "a") or states()["a"] != "leased")
        assert can_be_used(lease.tracker, lease.boards[0].key)
        assert states()["a"] == "leased"
    until(lambda: states()["a"] == "free")


def test_a_killed_tracker_is_back_on_its_port(farm):
    for pid in (victims := trackers(farm)):
        os.kill(pid, signal.SIGKILL)
    assert victims
    until(lambda: trackers(farm) and not set(victims) & set(trackers(farm)))
    until(lambda: json.loads(toolchain("farm", "status", "--json").out)["warnings"] == [])
    for _ in range(2):
        assert can_be_used(tuple(farm["tracker"]), "bench")
    assert not set(victims) & set(trackers(farm))


def trackers(farm: dict[str, Any]) -> list[int]:
    mark = "\0".join(["tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--port", str(farm["tracker"][1]), ""]).encode()
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if mark in command(int(path.name))]


def test_a_killed_keeper_leaves_nothing_and_is_replaced(lab, farm):
    with _farm_leases.lease("bench") as lease:
        left = [*board_servers(lab), *trackers(farm)]
        assert len(left) == 3
        os.kill(keeper(), signal.SIGKILL)
        until(lambda: not any(map(runs, left)))
        until(lambda: not lease.alive)
    assert not _farm_leases.serving()
    assert (_farm_protocol.folder() / _farm_protocol.SOCKET).exists()
    assert toolchain("farm", "up").code == 0
    with _farm_leases.lease("bench") as lease:
        assert can_be_used(lease.tracker, lease.boards[1].key)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_keeper_in_order(lab, farm, number):
    pid, left = keeper(), [*board_servers(lab), *trackers(farm)]
    os.kill(pid, number)
    until(lambda: not runs(pid), 20)
    until(lambda: not any(map(runs, left)), 10)
    assert not (_farm_protocol.folder() / _farm_protocol.SOCKET).exists()
    assert toolchain("farm", "down").code == 0


def test_a_keeper_that_hangs_is_ended(lab, farm, monkeypatch):
    monkeypatch.setattr(_farm_serving, "_ANSWER_S", 1.0)
    monkeypatch.setattr(_farm_serving, "_END_S", 1.0)
    pid = keeper()
    os.kill(pid, signal.SIGSTOP)
    assert toolchain("farm", "down").code == 0
    assert not runs(pid)
    until(lambda: not board_servers(lab))


def test_two_commands_start_one_keeper(lab, surroundings):
    assert toolchain("farm", "down").code == 0
    argv = [sys.executable, "-c", "from toolchain import cli; cli.main()", "farm", "up"]
    runs_of_it = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for one in runs_of_it:
        _out, err = one.communicate(timeout=120)
        assert one.returncode == 0, err
    assert states() == {"a": "free", "b": "free"}
    assert len(board_servers(lab)) == 2
    assert toolchain("farm", "down").code == 0  # and no second one takes over
    assert not _farm_leases.serving()


# --- without the farm ---


def places(lab: Lab) -> list[Place]:
    kind = board.load("bench").resolved()
    devices = board.load_devices()
    return [Place(name, kind, devices[name]) for name in ("a", "b")]


def test_a_keeper_of_ones_own(lab):
    assert toolchain("farm", "down").code == 0
    until(lambda: not board_servers(lab))
    told: list[str] = []
    with _farm_leases.private(places(lab), told.append) as folder:
        with _farm_leases.lease("bench", folder=folder) as lease:
            assert [type(one) for one in lease.boards] == [LeasedBoard] * 2
            assert can_be_used(lease.tracker, lease.boards[0].key)
        mine = board_servers(lab)
    assert {"a: serves", "b: serves"} <= set(told)
    assert not folder.exists()
    assert len(mine) >= 2
    until(lambda: not any(map(runs, mine)))


def test_a_keeper_of_ones_own_that_reaches_nobody(lab):
    kind = board.load("bench").resolved()
    device = board.Device(board="bench", host=f"me@127.0.0.1:{sshd.free_port()}")
    with (
        pytest.raises(DeviceError, match="cannot be reached"),
        _farm_leases.private([Place("c", kind, device)], lambda _text: None),
    ):
        pass


PRIVATE = """
    import time
    from toolchain import _farm_leases, board
    kind, devices = board.load("bench").resolved(), board.load_devices()
    with _farm_leases.private([_farm_leases.Place("a", kind, devices["a"])], lambda text: None) as folder:
        print("ready", folder, flush=True)
        time.sleep(600)
"""


def test_a_keeper_of_ones_own_dies_with_its_owner(lab):
    assert toolchain("farm", "down").code == 0
    until(lambda: not board_servers(lab))
    owner, folder = client(PRIVATE)
    assert Path(folder).exists()
    left = board_servers(lab)
    assert len(left) == 1
    kill(owner)
    until(lambda: not any(map(runs, left)))
    until(lambda: not Path(folder).exists())


# --- virtual boards ---


def test_a_virtual_board_is_served(tmp_path, lab, monkeypatch):
    monkeypatch.delenv("TOOLCHAIN_BOARDS")
    rpi4 = board.load("rpi4").resolved()
    with virtual.running(tmp_path / "cache", rpi4=1) as farm:
        device = board.load_devices(farm.devices)[name := farm.name("rpi4")]
        with (
            _farm_leases.private([Place(name, rpi4, device)], lambda _text: None) as folder,
            _farm_leases.lease("rpi4", folder=folder) as lease,
        ):
            assert lease.boards[0].emulated
            expected = remote.versions("aarch64")
            with remote.request(*lease.tracker, lease.boards[0].key, timeout_s=60, expected=expected) as opened:
                assert works(opened)
