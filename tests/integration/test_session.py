"""Sessions of tests touch nothing of the user, and end what they started: each test here runs such a session."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import docker.errors
import pytest

from tests.support import boards, session, tracing
from tests.support.labs import runs
from tests.support.parts import require
from tests.support.paths import ROOT
from toolchain import files

DEVICES = '[devices.bench]\nboard = "x86_64"\nhost = "me@10.0.0.7"\n'
SSH = "Host *\n  ProxyCommand touch {home}/connected\n"
"""A decoy's configuration of SSH: it shows whoever connects by it."""

PLANTS = ("-p", "tests.conftest")
"""What a session needs besides if its tests lie elsewhere than in `tests/`."""
LIMIT_S = 300.0


@dataclass(frozen=True)
class User:
    """Somebody who runs the tests, and has devices.

    Attributes:
        home: The home folder.
        environment: The variables of the shell.
    """

    home: Path
    environment: dict[str, str]

    def command(self, *arguments: object) -> list[str]:
        """Return the command that runs a session of tests."""
        options = ["-p", "no:cacheprovider", "--rootdir", ROOT, "-c", ROOT / "pyproject.toml"]
        return [str(argument) for argument in (sys.executable, "-m", "pytest", "-q", *options, *arguments)]

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        """Start a session."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(self.command(*arguments), env=self.environment, cwd=ROOT, text=True, **pipes)

    def test(self, *arguments: object) -> tuple[int, str]:
        """Run a session to its end; return its exit code and what it printed."""
        with self.start(*arguments) as running:
            out, _ = running.communicate(timeout=LIMIT_S)
        return running.returncode, out


@pytest.fixture
def user(tmp_path):
    """A user with an entry of every kind that the product reads, and the built programs of this one."""
    home = tmp_path / "user"
    config, cache = home / ".config" / "edge-toolchain", home / ".cache" / "edge-toolchain"
    for folder in (config, cache, home / ".ssh", home / ".docker", home / ".android", home / ".local" / "share"):
        folder.mkdir(parents=True)
    (config / "devices.toml").write_text(DEVICES)
    (cache / "farm").mkdir()
    (cache / "farm" / "devices.toml").write_text(DEVICES)
    (home / ".ssh" / "config").write_text(SSH.format(home=home))
    (home / ".docker" / "config.json").write_text('{"currentContext": "remote"}')
    for name in ("device", "zig", "vta"):
        (cache / name).symlink_to((files.cache_root() / name).resolve())
    ours = {name: text for name, text in os.environ.items() if not name.startswith("EDGE_TESTS_")}
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    theirs = {
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "PYTEST_DEBUG_TEMPROOT": str(temporary),
        "TOOLCHAIN_DEVICES": str(config / "devices.toml"),
        "TOOLCHAIN_CACHE": str(cache),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "SSH_AUTH_SOCK": str(home / "agent"),
        "DOCKER_CONFIG": str(home / ".docker"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return User(home, {name: text for name, text in ours.items() if not name.startswith("PYTEST_XDIST")} | theirs)


PLANTED = {
    "open": "open(session.real_homes()[0] / '.config' / 'edge-toolchain' / 'devices.toml').close()",
    "list": "os.listdir(session.real_homes()[0] / '.ssh')",
    "bytes": "os.mkdir(bytes(session.real_homes()[0] / 'folder'))",
    "passwd": "os.scandir(pwd.getpwuid(os.getuid()).pw_dir).close()",
    "process": "subprocess.run(['true'], env={'HOME': str(session.real_homes()[0])})",
    "address": "channel = socket.socket(); channel.setblocking(False); channel.connect_ex(('10.0.0.7', 22))",
    "agent": "socket.socket(socket.AF_UNIX).connect_ex(str(session.real_homes()[0] / 'agent'))",
    "name": "socket.getaddrinfo('bench.lan.invalid.com', 22, flags=socket.AI_NUMERICHOST)",
    "thread": "with futures.ThreadPoolExecutor(1) as pool: pool.submit(os.listdir, session.real_homes()[0])",
}
"""Ways to touch what is the user's."""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_test_that_touches_something_of_the_user_fails(user, tmp_path, workers):
    command = [
        "import contextlib, os, pwd, socket, subprocess",
        "from concurrent import futures",
        "from tests.support import session",
    ]
    for name, code in PLANTED.items():
        command += [f"def test_{name}():", "    with contextlib.suppress(OSError):", f"        {code}"]
    command += ["def test_innocent(tmp_path):", "    (tmp_path / 'file').write_text(os.environ['HOME'])"]
    command += ["    socket.create_server(('127.0.0.1', 0)).close()"]
    (tmp_path / "test_planted.py").write_text("\n".join(command) + "\n")
    code, out = user.test(*PLANTS, "-n", workers, tmp_path / "test_planted.py")
    assert code == 1, out
    assert set(re.findall(r"^ERROR .*::test_(\w+)", out, re.MULTILINE)) == set(PLANTED), out
    assert f"{len(PLANTED) + 1} passed" in out


DAEMON = """
import os, subprocess, sys, time
from pathlib import Path

def test_daemon():
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
    script = 'setsid "$@" & echo $! > {pid}.new; mv {pid}.new {pid}'
    subprocess.run(["sh", "-c", script, "sh", sys.executable, "-c", code], check=True)
    if {waits}:
        Path("{worker}").write_text(str(os.getpid()))
        time.sleep(1000)
"""


def planted(folder: Path, *, waits: bool) -> Path:
    """Write a test that starts a daemon, which no signal of a terminal reaches; return its path."""
    path = folder / "test_daemon.py"
    path.write_text(DAEMON.format(pid=folder / "pid", worker=folder / "worker", waits=waits))
    return path


def test_what_a_test_leaves_behind_is_named_and_ended(user, tmp_path):
    code, out = user.test(*PLANTS, "-n0", planted(tmp_path, waits=False))
    pid = (tmp_path / "pid").read_text().strip()
    assert code == 1
    assert "1 passed" in out
    assert re.search(rf"left behind and ended: .*time\.sleep\(1000\).*pid {pid}, started in .*::test_daemon", out), out
    assert not runs(int(pid))
    assert not list((tmp_path / "tmp").glob("edge-tests-*"))


CONTAINER = """
import os, subprocess
from pathlib import Path
import pytest
from tests.support import boards
from toolchain.virtual import container

def test_container(tmp_path):
    boards.choose(pytest.MonkeyPatch(), tmp_path)
    label = f"{{container._FOLDER}}={{tmp_path / 'farm'}}"
    words = [os.environ.get("TOOLCHAIN_DOCKER") or "docker", "create", "--label", label, "{image}", "true"]
    Path("{note}").write_text(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
"""


def test_a_container_that_a_test_leaves_behind_is_removed(user, tmp_path):
    engine = boards.engine()
    require("a Docker engine", "docker.io, and start dockerd", engine is not None)
    with tarfile.open(tmp_path / "empty.tar", "w"):
        pass
    image = engine.api.import_image_from_file(str(tmp_path / "empty.tar"), repository="edge-tests-empty")
    try:
        (tmp_path / "test_container.py").write_text(CONTAINER.format(image="edge-tests-empty", note=tmp_path / "note"))
        code, out = user.test(*PLANTS, "-n0", tmp_path / "test_container.py")
        name = (tmp_path / "note").read_text().strip()
        assert code == 1, out
        assert f"left behind and removed: container {name[:12]}" in out, image
        with pytest.raises(docker.errors.NotFound):
            engine.containers.get(name)
    finally:
        engine.images.remove("edge-tests-empty", force=True)


@pytest.mark.parametrize(("workers", "number"), [(0, signal.SIGINT), (1, signal.SIGINT), (1, signal.SIGTERM)])
def test_an_interrupted_session_leaves_no_process(user, tmp_path, workers, number):
    with user.start(*PLANTS, "-n", workers, planted(tmp_path, waits=True)) as running:
        wait_for(tmp_path / "worker")
        running.send_signal(number)
        out, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode not in {0, None}, out
    assert not runs(int((tmp_path / "pid").read_text())), out


def test_a_worker_that_dies_leaves_no_process(user, tmp_path):
    with user.start(*PLANTS, "-n1", "--max-worker-restart", 0, planted(tmp_path, waits=True)) as running:
        os.kill(int(wait_for(tmp_path / "worker")), signal.SIGKILL)
        out, _ = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 1, out
    assert not runs(int((tmp_path / "pid").read_text())), out


def wait_for(path: Path) -> str:
    """Return what a file says once it is there."""
    deadline = time.monotonic() + LIMIT_S
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return path.read_text()


SAMPLE = (
    "tests/unit/cli/test_farm.py",
    "tests/unit/pipeline/test_doctor.py",
    "tests/unit/shell/test_config.py",
    "tests/unit/shell/test_ssh.py",
    "tests/integration/test_farm_serving.py::test_up_and_status",
    "tests/integration/test_deploy_ssh.py::test_the_commands_of_a_day",
    "tests/integration/test_deploy_ssh.py::test_a_device_by_name",
)
"""Tests that start other programs, and that would read devices, keys and configuration."""


def opened(lines: Sequence[str], home: Path) -> list[str]:
    """Return the calls with a path below a home, except for Python, the checkout, and what sessions share.

    pytest itself loads readline, which reads .inputrc, before it loads anything of ours. And whoever starts a program
    tries the folders in PATH.
    """
    shared = [f"{home}/.cache/edge-toolchain/{name}" for name in (*session.SHARED, ".device-")] + [f"{home}/.inputrc"]
    lines = [line for line in lines if "execve(" not in line or "ENOENT" not in line]
    usual = [f"{path}/" for path in (ROOT, sys.prefix, sys.base_prefix, files.cache_root().resolve(), session.folder())]
    paths = [(path, line) for line in lines for path in re.findall(r'"([^"]*)"', line)]
    return [line for path, line in paths if path.startswith(f"{home}/") and not path.startswith((*shared, *usual))]


def test_an_opened_file_of_the_user_is_seen():
    lines = [
        '1 openat(AT_FDCWD, "/home/me/.ssh/config", O_RDONLY) = -1 ENOENT (No such file or directory)',
        '1 execve("/home/me/bin/ssh", ["ssh"], 0x1) = -1 ENOENT (No such file or directory)',
        '1 openat(AT_FDCWD, "/home/me/.cache/edge-toolchain/device/runner", O_RDONLY) = 3',
        '1 connect(3, {sa_family=AF_UNIX, sun_path="/home/me/agent"}, 20) = 0',
    ]
    assert opened(lines, Path("/home/me")) == [lines[0], lines[3]]


@pytest.mark.nightly
def test_no_program_that_tests_start_opens_anything_of_the_user(user, tmp_path):
    require("strace", "strace", shutil.which("strace") is not None)
    call_log = tmp_path / "calls"
    calls = "trace=open,openat,openat2,connect,sendto,execve,readlink,readlinkat"
    tracer = ["strace", "-f", "-qq", "-s", "200", "-e", calls, "-e", "signal=none", "-o", str(call_log)]
    argv = [*tracer, *user.command("-n0", *SAMPLE)]
    completed = subprocess.run(argv, env=user.environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-4000:]
    lines = call_log.read_text(errors="replace").splitlines()
    assert len({line.split()[0] for line in lines}) > 50, "too few processes: is this still a sample?"
    assert opened(lines, user.home) == []
    assert opened(lines, Path(pwd.getpwuid(os.getuid()).pw_dir)) == []
    assert not (user.home / "connected").exists()
    assert {host for host, _ in tracing.peers(lines)} <= {"127.0.0.1", "::1", "0.0.0.0", "::"}  # noqa: S104 - that is this host, too
