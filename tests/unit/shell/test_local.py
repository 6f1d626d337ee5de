"""This host as a device."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from toolchain.errors import DeviceError, InputError
from toolchain.shell import open_shell, protocol


@pytest.fixture
def local():
    with open_shell(None) as opened:
        yield opened


def test_local_run(local):
    assert local.name == "local"
    result = local.run("echo out; echo err >&2; exit 3", check=False)
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")


def test_local_failure_carries_code_script_and_stderr(local):
    with pytest.raises(DeviceError, match="exit code 7") as caught:
        local.run("echo because >&2; exit 7")
    assert "because" in caught.value.details
    assert "exit 7" in caught.value.details


def test_local_timeout(local):
    started = time.monotonic()
    with pytest.raises(DeviceError, match="did not finish"):
        local.run("sleep 300", timeout=0.2)
    assert time.monotonic() - started < 30


def test_local_push_resumes_and_counts(local, tmp_path):
    source, target = tmp_path / "source", tmp_path / "it's the target"
    data = os.urandom(3 * protocol.CHUNK + 17)
    source.write_bytes(data)
    target.write_bytes(data[:1000])
    progress: list[int] = []
    local.push(source, str(target), offset=1000, progress=progress.append)
    assert target.read_bytes() == data
    assert progress == sorted(progress)
    assert progress[-1] == len(data)
    assert local.bytes_sent == len(data) - 1000


def test_local_push_of_nothing_creates_the_file(local, tmp_path):
    (tmp_path / "empty").touch()
    local.push(tmp_path / "empty", str(tmp_path / "target"))
    assert (tmp_path / "target").read_bytes() == b""


def test_local_push_reports_a_full_disk(local, tmp_path):
    (tmp_path / "source").write_bytes(b"x" * 100)
    with pytest.raises(DeviceError) as caught:
        local.push(tmp_path / "source", "/dev/full")
    assert "No space left on device" in caught.value.details


@pytest.mark.parametrize(("offset", "name"), [(0, "missing"), (4, "source"), (-1, "source"), (0, ".")])
def test_push_checks_its_source(local, tmp_path, offset, name):
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(InputError):
        local.push(tmp_path / name, str(tmp_path / "target"), offset=offset)
    assert not (tmp_path / "target").exists()


def test_local_pull_is_atomic(local, tmp_path):
    source, target = tmp_path / "source", tmp_path / "folder" / "target"
    target.parent.mkdir()
    source.write_bytes(os.urandom(70_000))
    local.pull(str(source), target, max_bytes=64 << 20)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o444 == 0o444
    with pytest.raises(DeviceError, match="missing") as caught:
        local.pull(str(tmp_path / "missing"), target, max_bytes=64 << 20)
    assert "No such file" in caught.value.details
    assert target.read_bytes() == source.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    with pytest.raises(InputError, match="cannot write"):
        local.pull(str(source), tmp_path / "no folder" / "target", max_bytes=64 << 20)


def test_local_process_talks_in_lines(local):
    process = local.start('while read -r line; do echo "<$line>"; done; echo warned >&2; exit 5')
    process.write("one\ntwo\n")
    assert process.readline(5) == "<one>\n"
    assert process.readline(5) == "<two>\n"
    with pytest.raises(DeviceError, match="no line within"):
        process.readline(0.05)
    assert process.close() == 5
    assert process.close() == 5


def test_local_process_end_of_output(local):
    process = local.start("printf 'no newline'; echo why >&2")
    assert process.readline(5) == "no newline"
    assert process.readline(5) == ""
    assert process.stderr == "why\n"
    assert process.close() == 0


def test_local_process_may_say_more_than_anybody_reads(local):
    """As a server does that logs: whoever started it waits for its answers alone."""
    talker = local.start(
        "i=0; while [ $i -lt 3000 ]; do echo a rather long line about number $i >&2; i=$((i+1)); done; echo done"
    )
    assert talker.readline(20) == "done\n"
    assert talker.readline(5) == ""
    assert talker.stderr.endswith("number 2999\n")
    assert talker.close() == 0


def test_local_process_leaves_nothing_behind(local, tmp_path):
    process = local.start(f"sleep 300 & echo $! > {tmp_path}/pid; echo ready; exec sleep 300")
    assert process.readline(5) == "ready\n"
    pid = int((tmp_path / "pid").read_text())
    assert process.close() is None
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(pid)


@pytest.mark.parametrize(
    "script", ["echo $$ >PID; echo ready; exec sleep 300", "sleep 300 & echo $! >PID; echo ready; cat"]
)
def test_local_stream_leaves_nothing_behind(local, tmp_path, script):
    threads, files = threading.active_count(), len(list(Path("/proc/self/fd").iterdir()))
    with local.stream(script.replace("PID", str(tmp_path / "pid"))) as stream:
        assert stream.recv(6, socket.MSG_WAITALL) == b"ready\n"
        pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(pid)
    deadline = time.monotonic() + 5
    while threading.active_count() > threads or len(list(Path("/proc/self/fd").iterdir())) > files:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_local_stream_ends_with_its_script(local):
    with local.stream("sleep 300 & echo bye") as stream:
        assert stream.recv(4, socket.MSG_WAITALL) == b"bye\n"
        assert stream.recv(1) == b""


def _wait_until_gone(pid: int) -> None:
    """Raise ProcessLookupError once a process is gone; orphans are zombies until init has seen them."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.05)
