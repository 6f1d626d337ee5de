"""A shell over adb: the real client and server, and a device of our own with Android's shell and tools."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.support import adbd
from toolchain.errors import DeviceError, InputError
from toolchain.shell import SshOptions, open_shell


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    with adbd.server(tmp_path_factory.mktemp("adb")) as env:
        yield env


@pytest.fixture
def device(variables, tmp_path, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ANDROID_SERIAL", raising=False)
    with adbd.attached(tmp_path / "device") as attached:
        yield attached


@pytest.fixture
def shell(device):
    with open_shell(device.host) as opened:
        yield opened


def test_a_command_has_both_outputs_and_its_code(shell, device):
    result = shell.run("echo out; echo err >&2; exit 3", check=False)
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert shell.name == f"adb:{device.serial}"
    assert shell.server.startswith("adb ")


@pytest.mark.parametrize("code", [0, 1, 126, 255])
def test_each_code_is_the_commands(shell, code):
    assert shell.run(f"exit {code}", check=False).returncode == code


def test_a_command_that_a_signal_ends_has_its_code(shell):
    assert shell.run("kill -KILL $$", check=False).returncode == 137


def test_words_without_a_line_end_stay_whole(shell):
    result = shell.run("printf abc >&2; printf def")
    assert (result.stdout, result.stderr) == ("def", "abc")


def test_a_command_has_no_input(shell):
    assert shell.run("cat").stdout == ""


def test_files_go_there_and_back_whole(shell, tmp_path):
    data = os.urandom(2_000_000) + b"\n~.\r\n\0"
    (tmp_path / "here").write_bytes(data)
    target = tmp_path / "it's there"
    target.write_bytes(data[:1000])
    shell.push(tmp_path / "here", str(target), offset=1000)
    assert target.read_bytes() == data
    shell.pull(str(target), tmp_path / "back", max_bytes=len(data))
    assert (tmp_path / "back").read_bytes() == data
    assert shell.bytes_sent >= len(data) - 1000
    assert shell.bytes_received >= len(data)


def test_a_full_disk_has_the_devices_words(shell, tmp_path):
    (tmp_path / "source").write_bytes(b"x" * 3_000_000)
    with pytest.raises(DeviceError) as caught:
        shell.push(tmp_path / "source", "/dev/full")
    assert "No space left on device" in caught.value.details


def test_a_stream_carries_bytes_both_ways(shell):
    sock = shell.stream("exec cat")
    with sock:
        data = os.urandom(300_000)
        writer = threading.Thread(target=sock.sendall, args=(data,))
        writer.start()
        received = bytearray()
        while len(received) < len(data):
            received += sock.recv(1 << 16)
        writer.join()
    assert bytes(received) == data


def test_a_process_talks_in_lines_and_ends_with_its_code(shell):
    process = shell.start("while read -r line; do echo got $line; done; exit 5")
    process.write("one\n")
    assert process.readline(20) == "got one\n"
    assert process.close() == 5


def test_a_process_that_was_ended_is_no_lost_device(shell):
    process = shell.start("trap '' TERM; echo ready; while :; do sleep 1; done")
    assert process.readline(20) == "ready\n"
    process.close()
    assert shell.run("echo there").stdout == "there\n"


def gone(path, within=15.0):
    deadline = time.monotonic() + within
    while path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not path.exists()


def process_of(shell):
    """Start what runs for long, and return what tells whether it does: its folder in /proc."""
    process = shell.start("echo $$; exec sleep 1000")
    return process, Path("/proc") / process.readline(20).strip()


def test_nothing_outlives_a_time_limit(shell, tmp_path):
    with pytest.raises(DeviceError, match="did not finish within"):
        shell.run(f"echo $$ >{tmp_path}/pid; sleep 1000", timeout=1)
    assert gone(Path("/proc") / (tmp_path / "pid").read_text().strip())


def test_a_time_limit_ends_what_a_command_left_with_its_output(shell, tmp_path):
    with pytest.raises(DeviceError, match="did not finish within"):
        shell.run(f"sleep 1000 & echo $! >{tmp_path}/pid; echo hi", timeout=1)
    assert gone(Path("/proc") / (tmp_path / "pid").read_text().strip())


def test_what_a_command_leaves_without_its_output_stays(shell):
    pid = int(shell.run("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!").stdout)
    try:
        shell.run("sleep 1")
        os.kill(pid, 0)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_transfer_that_stalls_leaves_nothing(shell, tmp_path):
    """Its `cat` waits for a reader of the pipe that never comes."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "source").write_bytes(b"x" * 3_000_000)
    shell.stall = 1.0
    with pytest.raises(DeviceError):
        shell.push(tmp_path / "source", str(tmp_path / "pipe"))
    deadline = time.monotonic() + 15
    while (users := users_of(tmp_path / "pipe")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not users


def users_of(path):
    """Return the processes that have a path in their command line."""
    pids = []
    for command_file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            pids += [command_file.parent.name] if str(path).encode() in command_file.read_bytes() else []
    return pids


def test_a_client_that_vanishes_is_named(shell, monkeypatch):
    monkeypatch.setattr(shell, "_client", "/nowhere/adb")
    with pytest.raises(DeviceError, match="/nowhere/adb is not installed here"):
        shell.run("echo")
    with pytest.raises(DeviceError, match="/nowhere/adb is not installed here"):
        shell.stream("cat")


def test_nothing_outlives_who_started_it(device, tmp_path):
    """Killed, it closes nothing; its client is left, whose input ends."""
    script = f"""
import sys
from toolchain.shell import open_shell
process = open_shell({device.host!r}).start("echo $$; exec sleep 1000")
print(process.readline(20), end="", flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    running = Path("/proc") / owner.stdout.readline().strip()
    assert running.exists()
    owner.kill()
    owner.communicate()
    assert gone(running)


def test_nothing_outlives_the_cable(shell, device):
    process, running = process_of(shell)
    assert running.exists()
    device.pull()
    assert gone(running)
    with pytest.raises(DeviceError, match="was lost while reading"):
        process.readline(20)
    process.close()


@pytest.mark.parametrize("back", [False, True])
def test_a_pulled_cable_is_never_a_success(shell, device, back):
    """The client itself ends with 0 then."""
    threading.Timer(0.7, lambda: (device.pull(), back and device.plug())).start()
    with pytest.raises(DeviceError, match="was lost while running a command"):
        shell.run("sleep 3; echo done")


def test_a_cable_that_is_pulled_in_an_upload_is_told(shell, device, tmp_path):
    (tmp_path / "source").write_bytes(os.urandom(4_000_000))
    device.pull_after(1_000_000)
    with pytest.raises(DeviceError, match="was lost while running a command"):
        shell.push(tmp_path / "source", str(tmp_path / "target"))
    assert (tmp_path / "target").stat().st_size < 4_000_000


def test_a_device_that_never_stops_talking_is_ended(shell):
    with pytest.raises(DeviceError, match="wrote more than"):
        shell.run("cat /dev/zero", max_bytes=1000)


def test_a_script_that_adb_does_not_take_is_refused(shell):
    with pytest.raises(DeviceError, match="longer than adb accepts"):
        shell.run(f": {'x' * 70_000}")


def test_the_only_device_needs_no_serial(device):
    with open_shell("adb:") as shell:
        assert shell.name == device.host


def test_the_environment_may_name_the_device(device, monkeypatch, tmp_path):
    with adbd.attached(tmp_path / "other"):
        monkeypatch.setenv("ANDROID_SERIAL", device.serial)
        with open_shell("adb:") as shell:
            assert shell.name == device.host
        monkeypatch.setenv("ANDROID_SERIAL", "-s")
        with pytest.raises(InputError, match="ANDROID_SERIAL"):
            open_shell("adb:")


def test_options_of_ssh_are_refused_by_name(device, tmp_path):
    options = SshOptions(identity=tmp_path, known_hosts=(tmp_path,))
    with pytest.raises(InputError, match="-i / --identity and --known-hosts do not apply"):
        open_shell(device.host, config=options)


def test_an_old_device_is_refused(device):
    device.faults.features = "cmd"
    device.pull()
    device.plug()
    device.wait_until("device")
    with pytest.raises(DeviceError, match="not support version 2 of the adb shell protocol"):
        open_shell(device.host)
