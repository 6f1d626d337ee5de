"""The board server on its user's own socket: who gets in, who does not, and that nothing is left."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import socket
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.integration.test_board_server import (
    HERE,
    KINDS,
    LOOPBACK,
    RPC_MAGIC,
    RPC_MISMATCH,
    Server,
    built,
    close,
    compile_bad,
    greeted,
    handshake,
    load,
    port_to,
    received,
    run,
    running,
    until,
    versions,
    versions_of,
)
from tests.support import sshd, stranger
from tests.support.parts import require
from toolchain.errors import DeviceError
from toolchain.rpc import server as board_server
from toolchain.shell import LocalShell, SshOptions, open_shell

SESSIONS = int(os.environ.get("TOOLCHAIN_SESSIONS", "60"))
LOG = logging.getLogger(__name__)
GREETING = b"server:"
CALL = """
with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
    print(link.recv(1))
"""
RUN = """
if (child := os.fork()) == 0:
    os.dup2(1, 2)
    os.execv(sys.argv[1], sys.argv[1:])
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.fixture(scope="module")
def program():
    return built(KINDS[HERE])


@pytest.fixture(scope="module")
def bad_library(tmp_path_factory):
    return compile_bad(tmp_path_factory.mktemp("bad"))


@pytest.fixture
def keyless(program, tmp_path):
    """Return a server on a socket, which has no key yet."""
    with running(program, tmp_path, "--socket") as server:
        yield server


@pytest.fixture
def server(keyless):
    assert keyless.ask(f"key {keyless.key}") == "ok key"
    return keyless


@contextlib.contextmanager
def session(server: Server):
    """Begin a session of which nothing more is asked than to be."""
    with server.reach() as link:
        assert greeted(link, f"client:{server.key}") == RPC_MAGIC
        assert received(link, 4 + len(GREETING)).endswith(GREETING)
        assert server.hear().endswith(" begins")
        yield link


@contextlib.contextmanager
def tvm_session(server: Server, program: Path):
    """Begin a session of TVM's own client, through `board_server --connect`."""
    from tvm import rpc

    with port_to(program, "--connect", server.path) as port:
        yield rpc.connect(LOOPBACK, port, key=server.key)


def rest(link: socket.socket) -> str:
    """Read all that is still said."""
    data = b""
    while chunk := link.recv(1 << 16):
        data += chunk
    return data.decode(errors="replace")


def alive(pid: int) -> bool:
    """Tell whether a process does anything; one that nobody has waited for does not."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def living(server: Server) -> list[int]:
    """Name what descends from a server, the session's process first."""
    return sorted(pid for pid in sshd.descendants(server.pid) if alive(pid))


# --- keys ------------------------------------------------------------------------------------------------------------


def test_the_socket_is_its_users_alone_and_gone_at_the_end(keyless):
    folder = keyless.path.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(keyless.path.stat().st_mode) == 0o600
    assert versions_of(keyless) == versions()
    open_files = {str(path.readlink()) for path in Path(f"/proc/{keyless.pid}/fd").iterdir()}
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    assert not open_files & {f"socket:[{row[9]}]" for row in rows}
    keyless.process.stdin.close()
    assert keyless.process.wait(60) == 0
    assert not folder.exists()


def test_nobody_has_a_session_before_there_is_a_key(keyless):
    for greeting in ("client:", f"client:{keyless.key}", "server:", "client"):
        assert keyless.answer_to(greeting) == RPC_MISMATCH
    assert keyless.ask(f"key {keyless.key}") == "ok key"
    wrong = board_server.new_key()
    for greeting in ("client:", f"client:{wrong}", f"client:{keyless.key[:-1]}", f"client:{keyless.key}0", keyless.key):
        assert keyless.answer_to(greeting) == RPC_MISMATCH
    for number in range(1, 4):
        with session(keyless):
            pass
        assert keyless.hear() == f"session {number} ends: well"


@pytest.mark.parametrize("key", ["", "ab", "ab" * 31, "ab" * 33, "xy" * 32, "ab" * 31 + " a"])
def test_a_key_has_256_bits(keyless, key):
    assert keyless.ask(f"key {key}") == "error the key must be of 64 hexadecimal digits"
    assert keyless.answer_to(f"client:{key}") == RPC_MISMATCH


@pytest.mark.parametrize("order", ["withdraw", "key " + "ab" * 32])
def test_what_a_key_opened_ends_with_it(server, order):
    with session(server) as link, server.reach() as waits:
        waits.sendall(handshake(f"client:{server.key}".encode()))
        versions_of(server)  # who came before that is in the line
        assert server.ask(order) == f"ok {order.split()[0]}"
        assert received(waits, 4) == RPC_MISMATCH.to_bytes(4, "little")
        assert waits.recv(1) == b""
        assert board_server.SESSION_CUT in rest(link)
    assert server.hear() == f"session 1 ends: {board_server.SESSION_CUT}"
    assert server.answer_to(f"client:{server.key}") == RPC_MISMATCH
    if order.startswith("key"):
        assert server.answer_to(f"client:{order[4:]}") == RPC_MAGIC


def test_a_cut_session_makes_room_for_the_next(server, program, bad_library):
    with tvm_session(server, program) as opened:
        function = load(opened, bad_library)["endless"]
        assert server.hear() == "session 1 begins"
        with server.reach() as waits:
            waits.sendall(handshake(f"client:{server.key}".encode()))
            server.say(b"cut\n")
            # Who calls only when it has ended already gets TVM's own word for that.
            with pytest.raises(RuntimeError, match=f"{board_server.SESSION_CUT}|code=kShutdown"):
                function()
            assert received(waits, 4) == RPC_MAGIC.to_bytes(4, "little")
        heard = [server.hear() for _ in range(4)]
    ended = [f"session 1 ends: {board_server.SESSION_CUT}", "session 2 begins", "session 2 ends: well"]
    assert heard == ["ok cut", *ended]
    assert server.ask("cut") == "ok cut"  # also where there is nothing to end


def test_no_key_can_be_read_by_others(server, program, bad_library):
    with tvm_session(server, program) as opened:
        load(opened, bad_library)
        server.answer_to(f"client:{server.key}x")
        server.answer_to(f"another:{server.key}")
        pids = [server.pid, *sshd.descendants(server.pid)]
        assert len(pids) == 2
        for pid in pids:
            for name in ("cmdline", "environ"):
                assert server.key.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    server.ask("withdraw")
    assert "shows no key that opens a session" in server.log()
    assert server.key not in server.log()


# --- another user ----------------------------------------------------------------------------------------------------


@pytest.fixture
def open_door(program):
    """Return a server whose folder and socket another user may open, so that only the server itself refuses."""
    with stranger.shared_folder() as folder, running(program, folder, "--socket") as server:
        assert server.ask(f"key {server.key}") == "ok key"
        for path in (server.work, server.path.parent):
            path.chmod(0o755)
        server.path.chmod(0o777)
        yield server


def test_another_user_is_refused_though_the_socket_is_open_to_all(open_door):
    assert stranger.run(CALL, open_door.path) == "b''"
    assert f"it is user {stranger.UID}'s" in open_door.log()
    assert open_door.answer_to(f"client:{open_door.key}") == RPC_MAGIC


def test_who_connects_does_not_talk_to_another_users_server(open_door, program):
    copy = shutil.copy(program, open_door.work)
    command = (RUN, copy, "--connect", open_door.path)
    assert "the socket belongs to another user" in stranger.run(*command)
    os.chown(open_door.path, stranger.UID, stranger.UID)  # a foreign owner, or a foreign listener, is enough
    assert "another user listens there" in stranger.run(*command)
    with pytest.raises(DeviceError, match="belongs to another user"):
        board_server.dial(LocalShell(), board_server.Server(str(open_door.path), str(program), None), 5)


# --- limits, and what a session leaves -------------------------------------------------------------------------------


def test_an_idle_session_is_ended(program, tmp_path):
    with running(program, tmp_path, "--socket", "--idle-limit", "0.5") as server:
        assert server.ask(f"key {server.key}") == "ok key"
        message = "RPCSessionTimeoutError: session idle limit of 0.5 s reached; it is the board server's own"
        with session(server) as link:
            assert message in rest(link)
        assert server.hear().startswith(f"session 1 ends: {message}")


def test_a_session_in_which_something_runs_is_not_idle(program, tmp_path, bad_library):
    with running(program, tmp_path, "--socket", "--idle-limit", "1") as server:
        assert server.ask(f"key {server.key}") == "ok key"
        with tvm_session(server, program) as opened:
            assert load(opened, bad_library)["rest"]() is None  # for twice as long
            assert server.hear() == "session 1 begins"
            assert "idle limit of 1 s" in server.hear()
            with pytest.raises(RuntimeError, match=board_server.SESSION_EXPIRED + "idle limit of 1 s reached"):
                opened.listdir("")


@pytest.mark.parametrize("end", ["good-bye", "cut", "crash", "SIGTERM"])
def test_what_hides_from_its_session_ends_with_it(server, program, bad_library, end):
    """Children of the model's library in sessions and process groups of their own, whose parents are gone."""
    with tvm_session(server, program) as opened:
        library = load(opened, bad_library)
        library["hide"]()
        until(lambda: len(living(server)) == 3)
        hidden = living(server)[1:]
        if end == "good-bye":
            close(opened)
        elif end == "cut":
            server.say(b"cut\n")
        elif end == "crash":
            with pytest.raises(RuntimeError, match="SIGSEGV"):
                library["segfault"]()
        else:
            server.process.terminate()
            assert server.process.wait(10) == 0
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in hidden))
    if end != "SIGTERM":
        until(lambda: not sshd.descendants(server.pid))
        assert [path.name for path in server.path.parent.iterdir()] == [server.path.name]


# --- board_server --connect ------------------------------------------------------------------------------------------


@pytest.fixture
def connect(program, server):
    """Return a function that starts a program which leads to the server."""
    with contextlib.ExitStack() as stack:

        def start(**streams) -> subprocess.Popen[bytes]:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, **streams}
            process = subprocess.Popen([program, "--connect", server.path], bufsize=0, **streams)
            stack.callback(process.wait)
            stack.callback(process.kill)
            for stream in (process.stdin, process.stdout):
                if stream:
                    stack.callback(stream.close)
            return process

        yield start


def begin(server: Server, process: subprocess.Popen[bytes]) -> None:
    """Begin a session through a program that leads to the server."""
    process.stdin.write(handshake(f"client:{server.key}".encode()))
    size = 8 + len(GREETING)
    data = b""
    while len(data) < size:
        data += process.stdout.read(size - len(data))
    assert data.endswith(GREETING)
    assert server.hear().endswith(" begins")


def test_a_whole_session_through_it(server, program, bad_library):
    data = os.urandom(20 << 20)
    with tvm_session(server, program) as opened:
        start = time.monotonic()
        opened.upload(bytearray(data), "big")
        assert bytes(opened.download("big")) == data
        LOG.info("%s", f"40 MiB in {time.monotonic() - start:.2f} s")
        assert load(opened, bad_library)["fine"]() is None
        close(opened)
    assert [server.hear(), server.hear()] == ["session 1 begins", "session 1 ends: well"]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_it_waits_without_work(server, connect):
    process = connect()
    begin(server, process)
    before = cpu_ticks(process.pid)
    time.sleep(0.5)
    assert process.poll() is None
    assert cpu_ticks(process.pid) - before <= 5


@pytest.mark.parametrize("end", ["input", "output", "server", "cut"])
def test_it_ends_at_once_when_one_side_is_gone(server, connect, end):
    process = connect()
    begin(server, process)
    if end == "input":
        process.stdin.close()
    elif end == "output":
        process.stdout.close()
    elif end == "server":
        server.process.kill()
    else:  # it still hears why
        assert server.ask("cut") == "ok cut"
        assert board_server.SESSION_CUT.encode() in process.stdout.read(1 << 16)
        assert process.stdout.read() == b""
        process.stdin.close()
    assert process.wait(20) == 0
    if end != "server":
        assert server.hear().startswith("session 1 ends: ")


def test_input_that_ends_does_not_take_the_answer_away(server, connect):
    process = connect()
    process.stdin.write(handshake(b"edge-toolchain:version"))
    process.stdin.close()
    assert b'"tvm"' in process.stdout.read()
    assert process.wait(60) == 0


def test_there_is_nobody_to_connect_to(program, tmp_path):
    (tmp_path / "file").write_text("")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "deaf"))
    for path, message in [
        (tmp_path / "nothing", "No such file"),
        (tmp_path / "file", "it is not a socket"),
        (tmp_path / "deaf", "Connection refused"),
        (tmp_path / ("x" * 100), "has more than 107 bytes"),
    ]:
        completed = run(program, "--connect", str(path))
        assert completed.returncode == 2
        assert message in completed.stderr


def test_a_folder_with_a_long_name(program, tmp_path):
    deep = tmp_path / ("d" * 100)
    with running(program, tmp_path, "--socket", work=deep) as server:
        assert server.path.parent.parent == Path("/tmp")  # noqa: S108 - where it goes then
        assert versions_of(server) == versions()
        folders = [server.path.parent, *deep.iterdir()]
        assert len(folders) == 2
        server.process.stdin.close()
        assert server.process.wait(60) == 0
        assert not any(path.exists() for path in folders)


def test_where_no_file_can_be_a_socket_it_has_a_name(program, tmp_path):
    """As on Android, whose SELinux refuses the bind."""
    require("strace", "strace", shutil.which("strace") is not None)
    refusing = ("strace", "-qq", "-o", "/dev/null", "-e", "trace=bind", "-e", "inject=bind:error=EACCES:when=1")
    with running(program, tmp_path, "--socket", emulator=refusing) as server:
        name = server.address.removeprefix("unix:")
        assert re.fullmatch("@edge-board-server-[0-9a-f]{64}", name)
        assert server.ask(f"key {server.key}") == "ok key"
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(f"\0{name[1:]}")
            assert greeted(link, f"client:{server.key}") == RPC_MAGIC
            assert received(link, 4 + len(GREETING)).endswith(GREETING)
        assert [server.hear(), server.hear()] == ["session 1 begins", "session 1 ends: well"]
        with port_to(program, "--connect", name) as port, socket.create_connection((LOOPBACK, port)) as link:
            assert greeted(link, f"client:{server.key}") == RPC_MAGIC
        with board_server.dial(LocalShell(), board_server.Server(name, str(program), None), 10) as link:
            assert greeted(link, "client:wrong") == RPC_MISMATCH
    assert run(program, "--connect", "@edge-board-server-nobody").returncode == 2


# --- over SSH --------------------------------------------------------------------------------------------------------


def test_many_sessions_over_ssh_leave_nothing(program, tmp_path):
    """As many as TOOLCHAIN_SESSIONS says, each over a stream of its own."""
    with sshd.running(tmp_path / "sshd") as host:
        options = SshOptions(known_hosts=(host.known_hosts,), identity=host.key_file, agent=False)
        with open_shell(host.host, config=options) as shell:
            served = board_server.start(shell, str(program), ("--work-dir", str(tmp_path)))
            key = board_server.new_key()
            served.offer(key)

            def one() -> None:
                with board_server.dial(shell, served, 10) as link:
                    assert greeted(link, f"client:{key}") == RPC_MAGIC

            def left() -> list[int]:
                counts = [len(list(Path(f"/proc/self/{kind}").iterdir())) for kind in ("fd", "task")]
                return [*counts, len(sshd.descendants(host.process.pid))]

            before = left()
            start = time.monotonic()
            for _ in range(SESSIONS):
                one()
            elapsed = time.monotonic() - start
            until(lambda: left() == before)
            LOG.info("%s", f"{SESSIONS} sessions over SSH in {elapsed:.2f} s")
            until(lambda: list(Path(served.socket).parent.glob("session-*")) == [])
            served.stop()
        until(lambda: list(tmp_path.glob(".edge*")) == [])
