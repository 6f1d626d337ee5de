"""Places of labgrid: a real coordinator and a real exporter, on loopback, and a real SSH server for the board."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.support import bundles, sshd, two_boards
from tests.support.two_boards import KIND, Boards
from toolchain.device.lock import Owner
from toolchain.errors import BusyError, DeviceError, InputError, VerificationError
from toolchain.places import labgrid
from toolchain.shell import SshOptions

BIN = Path(sys.executable).parent
TOOLCHAIN = (sys.executable, "-c", "from toolchain import cli; cli.main()")
YAML = "exporter.yaml"
SOON_S, LIMIT_S = 120.0, 200.0


@dataclass(frozen=True)
class Rack:
    """A lab with a place `rack` whose device is the board `a`."""

    boards: Boards
    address: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self.boards.environment,
            "LG_COORDINATOR": self.address,
            "LG_HOSTNAME": "desk",
            "LG_USERNAME": "ann",
            "TOOLCHAIN_DEVICES": str(self.folder / "devices.toml"),
        }

    def labgrid(self, *arguments: str, user: str = "ann") -> tuple[int, str]:
        environment = {**self.environment, "LG_USERNAME": user}
        argv = [BIN / "labgrid-client", *arguments]
        completed = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return completed.returncode, completed.stdout + completed.stderr

    def owner(self) -> str:
        """Return who has the place; empty if nobody has."""
        code, output = self.labgrid("-p", "rack", "show")
        assert code == 0, output
        match = re.search(r"acquired: (\S+)", output)
        return "" if match is None or match[1] == "None" else match[1]

    def start(self, *arguments: object) -> subprocess.Popen[str]:
        key = self.boards.servers["a"].key_file
        argv = [*TOOLCHAIN, *map(str, arguments), "--board", KIND, "--place", "rack", "-i", key]
        argv += ["--root", self.boards.folder / "store-a"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
        return subprocess.Popen(argv, env=self.environment, cwd=self.folder, text=True, **pipes)

    def run(self, *arguments: object) -> tuple[int, str]:
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out + err


def hostkey(boards: Boards) -> str:
    return " ".join(boards.servers["a"].host_key.read_text().split()[:2])


@contextlib.contextmanager
def _running(folder: Path, name: str, *words: object, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([BIN / name, *map(str, words)], cwd=folder, stdout=log, stderr=log, env=env)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture(scope="module")
def rack(tmp_path_factory, native):
    folder = tmp_path_factory.mktemp("rack")
    with two_boards.running(tmp_path_factory.mktemp("boards"), native) as boards:
        server = boards.servers["a"]
        (folder / "devices.toml").write_text(f'[devices.rack]\nboard = "{KIND}"\nhost = "elsewhere"\nemulated = true\n')
        (folder / YAML).write_text(
            "lab:\n  NetworkService:\n"
            f"    address: '127.0.0.1'\n    port: {server.port}\n    username: '{server.user}'\n"
        )
        lab_rack = Rack(boards, f"127.0.0.1:{sshd.free_port()}", folder)
        with contextlib.ExitStack() as stack:
            start = partial(_running, folder, env=lab_rack.environment)
            stack.enter_context(start("labgrid-coordinator", "-l", lab_rack.address))
            _until(lambda: lab_rack.labgrid("places")[0] == 0)  # an exporter that finds no coordinator ends
            stack.enter_context(start("labgrid-exporter", "-c", lab_rack.address, "-n", "shelf", YAML))
            _until(lambda: "shelf" in lab_rack.labgrid("resources")[1])
            tag = f"hostkey={hostkey(boards)}"
            for command in (("create",), ("add-match", "shelf/lab/NetworkService"), ("set-tags", tag)):
                code, output = lab_rack.labgrid("-p", "rack", *command)
                assert code == 0, output
            yield lab_rack


def _until(condition) -> None:
    deadline = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < deadline, inspect.getsource(condition)
        time.sleep(0.2)


@pytest.fixture(autouse=True)
def surroundings(rack, monkeypatch):
    for name in ("LG_COORDINATOR", "LG_HOSTNAME", "LG_USERNAME"):
        monkeypatch.setenv(name, rack.environment[name])
    yield
    assert rack.owner() == ""


@pytest.fixture(scope="module")
def package(tiny, tmp_path_factory):
    return bundles.variant(tiny, tmp_path_factory.mktemp("package") / "bundle", {}, board=KIND)


def test_a_place_says_where_its_device_is(rack):
    server = rack.boards.servers["a"]
    with labgrid.acquire("rack") as acquired:
        assert rack.owner() == "desk/ann"
        assert acquired.host == f"{server.user}@127.0.0.1:{server.port}"
        assert acquired.device(KIND).host == acquired.host
        assert acquired.known_hosts.read_text() == f"[127.0.0.1]:{server.port} {hostkey(rack.boards)}\n"
        assert acquired.ssh(SshOptions()).known_hosts == (acquired.known_hosts,)
        assert acquired.ssh(SshOptions(known_hosts=(Path("mine"),))).known_hosts == (Path("mine"),)
    assert not acquired.known_hosts.exists()


def test_a_command_at_a_place(rack, package):
    code, output = rack.run("deploy", package.folder, "--budget", "0.05")
    assert code == 0, output
    assert "(emulated)" in output  # so says its entry in devices.toml
    assert rack.boards.store("a").releases.current().digest == package.digest


def test_a_place_that_somebody_has(rack):
    assert rack.labgrid("-p", "rack", "acquire", user="bob")[0] == 0
    try:
        with pytest.raises(BusyError, match="place rack is acquired by desk/bob") as caught, labgrid.acquire("rack"):
            pass
        assert caught.value.owner == "desk/bob: place rack"
        process = rack.start("status")
        with process:
            out, err = process.communicate(timeout=60)
        assert process.returncode == 75, err
        process = rack.start("bench", "--budget", "0.05", "--wait", "100")
        line = process.stderr.readline()
        assert "acquired by desk/bob" in line
        assert "waiting" in line
    finally:
        assert rack.labgrid("-p", "rack", "release", user="bob")[0] == 0
    with process:
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode in {0, 4}, out + err  # nothing may be deployed there yet


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGINT, 130)])
def test_a_command_that_is_told_to_end_releases_its_place(rack, package, number, code):
    with rack.boards.store("a").lock(Owner("ann@desk", "deploy")):
        process = rack.start("deploy", package.folder, "--wait", "100")
        with process:
            _until(lambda: rack.owner() == "desk/ann")
            for line in process.stderr:
                if "waiting for up to" in line:
                    break
            process.send_signal(number)
            assert process.wait(60) == code
        assert rack.owner() == ""


def test_a_session_of_tests_at_a_place(rack, package, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(board):\n    assert board.emulated\n")
    config = tmp_path / "config"
    config.write_text(f"Host *\n  IdentityFile {rack.boards.servers['a'].key_file}\n")
    argv = [sys.executable, "-m", "pytest", "-p", two_boards.PLUGIN, "-p", "no:cacheprovider", "--board", KIND]
    (tmp_path / "devices.toml").write_text(
        f'[devices.rack]\nboard = "{KIND}"\nhost = "x"\nemulated = true\nssh_config = "config"\n'
        f'root = "{rack.boards.folder}/store-a"\n'
    )
    completed = subprocess.run(
        [*argv, "--place", "rack", "--devices", "devices.toml"],
        env=rack.environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr


# --- what is wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nobody", "rac"])
def test_no_such_place(name):
    with pytest.raises(InputError, match="labgrid has no place"), labgrid.acquire(name):
        pass


def test_a_tag_that_is_no_key(rack):
    assert rack.labgrid("-p", "rack", "set-tags", "hostkey=ssh-ed25519 *")[0] == 0
    try:
        with pytest.raises(VerificationError, match="is not a valid public host key"), labgrid.acquire("rack"):
            pass
        assert rack.owner() == ""
    finally:
        assert rack.labgrid("-p", "rack", "set-tags", f"hostkey={hostkey(rack.boards)}")[0] == 0


def test_another_key_is_refused(rack):
    key = hostkey(rack.boards)
    other = key[:-5] + ("AAAAA" if not key.endswith("AAAAA") else "BBBBB")
    assert rack.labgrid("-p", "rack", "set-tags", f"hostkey={other}")[0] == 0
    try:
        code, output = rack.run("status")
        assert code == 5, output
    finally:
        assert rack.labgrid("-p", "rack", "set-tags", f"hostkey={hostkey(rack.boards)}")[0] == 0


def test_a_place_without_a_device(rack):
    assert rack.labgrid("-p", "empty", "create")[0] == 0
    try:
        with pytest.raises((InputError, DeviceError)), labgrid.acquire("empty"):
            pass
    finally:
        assert rack.labgrid("-p", "empty", "delete")[0] == 0


def test_no_coordinator(monkeypatch):
    monkeypatch.setattr(labgrid, "_ANSWER_S", 2.0)
    monkeypatch.setenv("LG_COORDINATOR", f"127.0.0.1:{sshd.free_port()}")
    with pytest.raises(DeviceError, match="the labgrid coordinator at"), labgrid.acquire("rack"):
        pass


@pytest.mark.parametrize("options", [("--host", "x"), ("--board", "local")])
def test_options_that_exclude_each_other(rack, options):
    argv = [*TOOLCHAIN, "status", "--board", KIND, "--place", "rack", *options]
    environment = {name: value for name, value in rack.environment.items() if name != "TOOLCHAIN_BOARDS"}
    if "local" not in options:
        environment = rack.environment
    completed = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert completed.returncode == 2
    assert "cannot be combined" in completed.stderr


def test_without_labgrid(monkeypatch):
    monkeypatch.setitem(sys.modules, "labgrid.remote", None)
    with pytest.raises(InputError, match="not installed") as caught, labgrid.acquire("rack"):
        pass
    assert caught.value.hint == "pip install 'labgrid>=26'"
    assert os.environ["LG_COORDINATOR"]
