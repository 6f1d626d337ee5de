"""Virtual boards that really run: a user land of ARM, an SSH server, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support import boards
from tests.support.boards import Farm
from tests.support.parts import require
from tests.support.paths import ROOT
from toolchain import devices as lab
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.shell import SshOptions, open_shell
from toolchain.virtual import fleet

pytestmark = pytest.mark.xdist_group("docker")

LABEL = "edge-toolchain.farm"
MACHINES = {"rpi4": "aarch64", "pynq": "armv7l"}


@pytest.fixture(scope="module")
def engine():
    return boards.require_emulation()


@pytest.fixture(scope="module")
def two(engine, tmp_path_factory):
    """One board of each architecture, which nobody changes."""
    with boards.running(tmp_path_factory.mktemp("farm")) as running:
        yield running


@pytest.fixture
def farm_folder(engine, tmp_path, monkeypatch):
    """A farm without boards, which a test may do anything to."""
    boards.choose(monkeypatch, tmp_path)
    yield tmp_path / "farm"
    fleet.down()


def ssh(farm_of: Farm, name: str, command: str, **options) -> subprocess.CompletedProcess[str]:
    argv = ["ssh", "-F", str(farm_of.config), "-o", "BatchMode=yes", name, command]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, **options)


def containers(engine, folder: Path) -> list[str]:
    leftovers = engine.containers.list(all=True, ignore_removed=True, filters={"label": f"{LABEL}.folder={folder}"})
    return sorted(container.name for container in leftovers)


def options_of(folder: Path) -> SshOptions:
    return SshOptions(config_file=folder / "ssh_config", agent=False)


# --- a board is what it says ---


@pytest.mark.parametrize("kind", MACHINES)
def test_login_with_openssh(two, kind):
    completed = ssh(two, two.name(kind), "uname -m; id -un; pwd")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.split() == [MACHINES[kind], "board", "/home/board"]


@pytest.mark.parametrize("kind", MACHINES)
def test_login_with_our_shell(two, kind, tmp_path):
    source, back = tmp_path / "source", tmp_path / "back"
    source.write_bytes(os.urandom(3 << 20))
    with open_shell(two.name(kind), config=options_of(two.folder)) as shell:
        assert shell.run("uname -m").stdout.strip() == MACHINES[kind]
        shell.push(source, "/data/file")
        shell.pull("/data/file", back, max_bytes=3 << 20)
        shell.run("rm /data/file")
    assert back.read_bytes() == source.read_bytes()


def test_sftp(two, tmp_path):
    (tmp_path / "file").write_text("hello")
    batch = f"put {tmp_path}/file /data/sent\nget /data/sent {tmp_path}/back\nrm /data/sent\n"
    argv = ["sftp", "-F", str(two.config), "-b", "-", two.name("rpi4")]
    subprocess.run(argv, input=batch, text=True, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "back").read_text() == "hello"


@pytest.mark.parametrize(
    ("kind", "architecture", "loader"),
    [("rpi4", "arm64", "/lib/ld-linux-aarch64.so.1"), ("pynq", "armhf", "/lib/ld-linux-armhf.so.3")],
)
def test_user_land_is_real(two, kind, architecture, loader):
    name = two.name(kind)
    assert ssh(two, name, "dpkg --print-architecture").stdout.strip() == architecture
    rows = [line.split() for line in ssh(two, name, "dpkg -l").stdout.splitlines() if line.startswith("ii")]
    assert {row[3] for row in rows} == {architecture, "all"}
    assert {"openssh-server", f"libstdc++6:{architecture}", "dash"} <= {row[1] for row in rows}
    assert ssh(two, name, "dpkg --audit").stdout == ""
    assert ssh(two, name, f"dpkg -S {loader}").stdout.strip() == f"libc6:{architecture}: {loader}"
    libraries = ssh(two, name, "ldd /usr/sbin/sshd").stdout
    assert loader in libraries
    assert "not found" not in libraries


def test_cpu_is_the_boards(two):
    """QEMU's own CPU has every feature; a board's has not, and neither says what the host's has."""
    cpu_info = "cat /proc/cpuinfo; echo $QEMU_CPU"
    arm64, armhf = (ssh(two, two.name(kind), cpu_info).stdout for kind in MACHINES)
    assert "asimd" in arm64
    assert arm64.endswith("cortex-a72\n")
    assert "neon" in armhf
    assert armhf.endswith("cortex-a9\n")
    assert "sse" not in arm64 + armhf


@pytest.mark.nightly
def test_instruction_that_the_boards_cpu_lacks(two, tmp_path):
    """Code for a newer CPU than the board's ends as it would there, whatever the emulator knows."""
    (tmp_path / "main.c").write_text(
        '#include <stdio.h>\nint main(void) { __asm__ volatile(INSTRUCTION); puts("ran"); return 0; }\n'
    )
    instructions = {"old": "mul v0.4s, v1.4s, v2.4s", "new": ".arch armv8.2-a+dotprod\\n sdot v0.4s, v1.16b, v2.16b"}
    ended = {}
    with open_shell(two.name("rpi4"), config=options_of(two.folder)) as shell:
        for name, instruction in instructions.items():
            argv = [sys.executable, "-m", "ziglang", "cc", "-target", "aarch64-linux-gnu.2.28"]
            argv += [f'-DINSTRUCTION="{instruction}"', tmp_path / "main.c", "-o", tmp_path / name]
            subprocess.run(argv, check=True, capture_output=True)
            shell.push(tmp_path / name, f"/data/{name}")
            ended[name] = shell.run(f"chmod +x /data/{name}; /data/{name}", check=False).returncode
    assert ended == {"old": 0, "new": 128 + signal.SIGILL}


def test_only_the_farms_key_gets_in(two, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    config = tmp_path / "config"
    config.write_text(two.config.read_text().replace(str(two.folder / "id_ed25519"), str(tmp_path / "other")))
    name = two.name("rpi4")
    with pytest.raises(DeviceError), open_shell(name, config=SshOptions(config_file=config, agent=False)):
        pass
    as_root = SshOptions(config_file=two.config, agent=False)
    with pytest.raises(DeviceError), open_shell(f"root@{name}", config=as_root):
        pass


def test_nobody_becomes_root(two):
    assert ssh(two, two.name("rpi4"), "grep -E 'CapBnd|NoNewPrivs' /proc/self/status").stdout.split()[-1] == "1"
    assert ssh(two, two.name("rpi4"), "su -c true").returncode != 0


def test_published_on_loopback_only(two, engine):
    for name in containers(engine, two.folder):
        bindings = engine.containers.get(name).attrs["NetworkSettings"]["Ports"]
        assert [binding["HostIp"] for binding in bindings["22/tcp"]] == ["127.0.0.1"]
        assert len(bindings) == 1


def test_files(two):
    assert stat.S_IMODE((two.folder / "id_ed25519").stat().st_mode) == 0o600
    assert stat.S_IMODE(two.folder.stat().st_mode) == 0o700
    assert {path.name for path in two.folder.iterdir()} == {"devices.toml", "id_ed25519", "known_hosts", "ssh_config"}
    devices = lab.load_devices(two.devices)
    assert {device.board for device in devices.values()} == set(MACHINES)
    assert all(device.emulated and device.ssh_config == two.config for device in devices.values())


# --- up ---


def test_up_again_changes_nothing(two):
    with boards.its_cache(two.cache):
        assert fleet.up({"rpi4": 1}) == tuple(board for board in two.boards if board.board == "rpi4")
        assert fleet.status() == two.boards


def test_the_number_is_reached_and_a_stopped_board_comes_back(farm_folder, engine):
    first = fleet.up({"pynq": 1})
    with open_shell(first[0].name, config=options_of(farm_folder)) as shell:
        shell.run("echo kept > /data/note")
    engine.containers.get(f"edge-{first[0].name}").kill()
    assert [machine.running for machine in fleet.status()] == [False]
    known_hosts = (farm_folder / "known_hosts").read_text()
    messages: list[str] = []
    second = fleet.up({"pynq": 2}, messages.append)
    assert second[0] == first[0]
    assert len(second) == 2
    assert any(first[0].name in message for message in messages)
    assert (farm_folder / "known_hosts").read_text().startswith(known_hosts)
    with open_shell(first[0].name, config=options_of(farm_folder)) as shell:
        assert shell.run("cat /data/note").stdout == "kept\n"


def test_new_board_of_an_old_name_is_not_trusted_by_old_files(farm_folder, tmp_path):
    first = fleet.up({"rpi4": 1})
    old = shutil.copytree(farm_folder, tmp_path / "old")
    fleet.down()
    # Boards of others may have left lower numbers meanwhile: those are taken first.
    names = (board.name for count in range(1, 9) for board in fleet.up({"rpi4": count}))
    assert first[0].name in names
    shutil.copy2(farm_folder / "id_ed25519", old / "id_ed25519")
    config = old / "ssh_config"
    text = (farm_folder / "ssh_config").read_text()
    config.write_text(text.replace(str(farm_folder), str(old)))
    with pytest.raises(VerificationError), open_shell(first[0].name, config=options_of(old)):
        pass
    strict = ["ssh", "-F", str(config), "-o", "BatchMode=yes", first[0].name, "true"]
    refused = subprocess.run(strict, capture_output=True, text=True, check=False, timeout=60)
    assert refused.returncode == 255
    assert "HOST IDENTIFICATION HAS CHANGED" in refused.stderr
    with open_shell(first[0].name, config=options_of(farm_folder)) as shell:
        shell.run("true")


def test_board_that_lets_in_another_key_is_replaced(farm_folder):
    first = fleet.up({"rpi4": 1})
    for path in farm_folder.iterdir():
        path.unlink()
    second = fleet.up({"rpi4": 1})
    assert second[0].client != first[0].client
    with open_shell(second[0].name, config=options_of(farm_folder)) as shell:
        shell.run("true")


def test_board_that_does_not_answer_is_removed(farm_folder, engine):
    with pytest.raises(DeviceError, match="did not answer within 0 s"):
        fleet.up({"rpi4": 1}, wait=0.0)
    assert containers(engine, farm_folder) == []


def test_failed_up_leaves_older_boards_alone(farm_folder, engine, monkeypatch):
    first = fleet.up({"rpi4": 1})
    before = (farm_folder / "devices.toml").read_bytes()
    with pytest.raises(DeviceError):
        fleet.up({"rpi4": 2}, wait=0.0)
    assert fleet.status() == first
    assert (farm_folder / "devices.toml").read_bytes() == before


# --- a client that ends in the middle ---

CLIENT = """
import signal
from toolchain.virtual import fleet

signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored in what a shell starts in the background
print("begun", flush=True)
fleet.up({"rpi4": 1, "pynq": 1}, lambda message: print(message, flush=True))
print("up", flush=True)
"""


def client(cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "TOOLCHAIN_CACHE": str(cache), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", CLIENT]
    return subprocess.Popen(argv, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def read_until(process: subprocess.Popen[str], text: str) -> None:
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"it ended without saying {text!r}")


def test_interrupted_up_leaves_nothing(farm_folder, engine):
    with client(farm_folder.parent) as process:
        read_until(process, "started rpi4")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) not in {0, None}
    assert containers(engine, farm_folder) == []


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.4])
def test_killed_up_is_mended_by_the_next(farm_folder, engine, moment):
    with client(farm_folder.parent) as process:
        read_until(process, "started rpi4")
        time.sleep(moment)
        process.kill()
    assert containers(engine, farm_folder) != []
    machines = fleet.up({"rpi4": 1, "pynq": 1})
    assert sorted(machine.board for machine in machines) == ["pynq", "rpi4"]
    for machine in machines:
        with open_shell(machine.name, config=options_of(farm_folder)) as shell:
            assert shell.run("uname -m").stdout.strip() == MACHINES[machine.board]
    fleet.down()
    assert containers(engine, farm_folder) == []
    assert not farm_folder.exists()


def test_two_commands_at_once(farm_folder, engine):
    """The second waits for the first, and then finds its boards."""
    messages: list[str] = []
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(fleet.up({"rpi4": 1}, messages.append))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(containers(engine, farm_folder)) == 1
    assert results[0] == results[1]
    assert any("is in use by process" in line for line in messages)


# --- down ---


def test_down_leaves_nothing(farm_folder, engine):
    machines = fleet.up({"rpi4": 1, "pynq": 1})
    mounts = [
        mount for name in containers(engine, farm_folder) for mount in engine.containers.get(name).attrs["Mounts"]
    ]
    assert {mount["Destination"] for mount in mounts} == {"/proc/cpuinfo"}
    assert sorted(fleet.down([machines[0].name])) == [machines[0].name]
    assert list(lab.load_devices(farm_folder / "devices.toml")) == [machines[1].name]
    assert fleet.down() == (machines[1].name,)
    assert containers(engine, farm_folder) == []
    assert fleet.status() == ()
    assert not farm_folder.exists()
    assert fleet.down() == ()


def test_down_with_a_wrong_name_removes_nothing(two):
    name = two.name("rpi4")
    with boards.its_cache(two.cache), pytest.raises(InputError) as caught:
        fleet.down([name, f"{name}x"])
    assert caught.value.hint == f"did you mean {name}?"
    assert ssh(two, name, "true").returncode == 0


def test_containers_of_others_are_left_alone(farm_folder, engine, tmp_path):
    """Neither one of our name without our label, nor a board of somebody else's farm, is touched."""
    elsewhere = {LABEL: "rpi4", f"{LABEL}.folder": str(tmp_path / "elsewhere")}
    names = {container.name for container in engine.containers.list(all=True, ignore_removed=True)}
    names_taken = sorted({"edge-rpi4-1", "edge-rpi4-2"} - names)
    foreign = [
        engine.containers.create(boards.BASE_IMAGE, ["sleep", "60"], name=name, labels=labels)
        for name, labels in zip(names_taken, ({}, elsewhere), strict=False)
    ]
    try:
        machines = fleet.up({"rpi4": 1})
        assert f"edge-{machines[0].name}" not in names_taken
        assert fleet.status() == machines
        with pytest.raises(InputError):
            fleet.down(["rpi4-1"])
        fleet.down()
        for container in foreign:
            container.reload()
            assert container.status == "created"
    finally:
        for container in foreign:
            container.remove(force=True)


# --- boards with a kernel of their own ---


@pytest.fixture(scope="module")
def machines(engine, tmp_path_factory):
    """A folder for a farm of machines; the files that they boot from are unpacked once."""
    require("QEMU for whole ARM machines", "qemu-system-arm", shutil.which("qemu-system-aarch64") is not None)
    return tmp_path_factory.mktemp("machines")


@pytest.fixture
def own_machines(machines, monkeypatch):
    boards.choose(monkeypatch, machines)
    yield machines / "farm"
    fleet.down()


def processes(folder: Path) -> list[int]:
    """Find QEMU's processes of a farm by their command lines."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in path.read_bytes() and b"qemu-system" in path.read_bytes():
                pids.append(int(path.parent.name))
    return pids


@pytest.mark.nightly
def test_machines(own_machines, engine):
    """A kernel of Debian's own, a disk that outlives a power cut, and nothing that outlives `down`."""
    first = fleet.up({"rpi4": 1, "pynq": 1}, kernel=True)
    assert [(machine.board, machine.kind) for machine in first] == [("pynq", "kernel"), ("rpi4", "kernel")]
    assert len(processes(own_machines)) == 2
    for machine in first:
        with open_shell(machine.name, config=options_of(own_machines)) as shell:
            assert shell.run("uname -m").stdout.strip() == MACHINES[machine.board]
            assert "Debian" in shell.run("uname -v").stdout
            assert shell.run("hostname").stdout.strip() == machine.name
            assert abs(int(shell.run("date +%s").stdout) - time.time()) < 30
            shell.run("echo kept > ~/note; echo kept > /data/note; sync; echo gone > /tmp/note")
    for pid in processes(own_machines):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: processes(own_machines) == [])
    assert [machine.running for machine in fleet.status()] == [False, False]
    assert fleet.up({"rpi4": 1, "pynq": 1}, kernel=True) == first
    for machine in first:
        with open_shell(machine.name, config=options_of(own_machines)) as shell:
            assert shell.run("cat ~/note /data/note; ls /tmp").stdout == "kept\nkept\n"
    assert sorted(fleet.down()) == sorted(machine.name for machine in first)
    assert processes(own_machines) == []
    assert not own_machines.exists()


def test_machine_with_a_strangers_process_number(own_machines):
    """A number that another process has by now is not taken for the machine's, and that process lives on."""
    (machine,) = fleet.up({"rpi4": 1}, kernel=True)
    (pid,) = processes(own_machines)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: processes(own_machines) == [])
    with subprocess.Popen(["sleep", "60"]) as stranger:
        (own_machines / "machines" / machine.name / "pid").write_text(f"{stranger.pid}\n")
        assert [other.running for other in fleet.status()] == [False]
        fleet.down()
        assert stranger.poll() is None
        stranger.kill()


def test_machine_that_does_not_answer_is_removed(own_machines):
    with pytest.raises(DeviceError, match="did not answer within 0 s"):
        fleet.up({"pynq": 1}, kernel=True, wait=0.0)
    assert processes(own_machines) == []
    assert fleet.status() == ()


@pytest.mark.nightly
def test_both_kinds_side_by_side(own_machines):
    fleet.up({"pynq": 1})
    fleet.up({"pynq": 1}, kernel=True)
    machines = fleet.status()
    assert sorted(machine.kind for machine in machines) == ["docker", "kernel"]
    assert len({machine.name for machine in machines}) == 2
    assert set(lab.load_devices()) >= {machine.name for machine in machines}


def wait_until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
