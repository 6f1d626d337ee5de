"""Long-lived commands that say what they like, here and over SSH."""

from __future__ import annotations

import threading
import time

import pytest

from tests.support import memory
from toolchain.errors import DeviceError
from toolchain.shell import SshOptions, open_shell, protocol

MEMORY_KIB = 200 << 10


@pytest.fixture(params=["local", "ssh"])
def shell(request):
    if request.param == "local":
        with open_shell(None) as opened:
            yield opened
        return
    options = SshOptions(config_file=request.getfixturevalue("server").config, agent=False, stall_timeout=5)
    with open_shell("board", config=options) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _little_memory():
    """No attack may make this process larger by what would be noticed."""
    with memory.at_most(MEMORY_KIB):
        yield


ENDLESS = "yes | tr -d '\\n'"


def test_a_line_without_an_end(shell):
    process = shell.start(f"{ENDLESS} & cat")
    started = time.monotonic()
    with pytest.raises(DeviceError, match="a line longer than 1048576 bytes"):
        process.readline(60)
    assert time.monotonic() - started < 50
    process.close()


def test_lines_without_an_end_are_read_one_by_one(shell):
    process = shell.start("yes & cat")
    assert [process.readline(30) for _ in range(1000)] == ["y\n"] * 1000
    process.close()


def test_standard_error_without_an_end(shell):
    process = shell.start("yes >&2 & while read -r line; do echo $line; done")
    time.sleep(0.5)
    process.write("a\n")
    assert process.readline(30) == "a\n"
    with pytest.raises(DeviceError, match="no line within"):
        process.readline(0.1)
    assert 0 < len(process.stderr) <= 1 << 14
    process.close()


def test_more_is_said_than_anybody_listens_to(shell):
    """As a server does that logs: nobody reads meanwhile, and it goes on."""
    process = shell.start("i=0; while [ $i -lt 9000 ]; do echo number $i >&2; i=$((i+1)); done; echo done; cat")
    time.sleep(0.2)
    assert process.readline(60) == "done\n"
    process.close()


@pytest.mark.parametrize("command", ["yes", "yes >&2", ENDLESS, "cat /dev/zero", "yes & yes >&2"])
def test_a_command_without_an_end(shell, command):
    started = time.monotonic()
    with pytest.raises(DeviceError, match=r"wrote more than 100000 bytes|did not finish within"):
        shell.run(command, timeout=1.0, max_bytes=100_000)
    assert time.monotonic() - started < 50
    assert shell.run("echo again").stdout == "again\n"


def test_a_file_without_an_end(shell, tmp_path):
    (tmp_path / "target").write_text("old")
    with pytest.raises(DeviceError, match="wrote more than 100000 bytes"):
        shell.pull("/dev/zero", tmp_path / "target", max_bytes=100_000)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("target", "old")]


def test_a_file_that_says_nothing(shell, tmp_path):
    shell.stall = 0.5
    shell.run(f"mkfifo {tmp_path}/silent; (exec >/dev/null 2>&1; sleep 20 >{tmp_path}/silent) </dev/null &")
    with pytest.raises(DeviceError, match=r"moved no data for 0\.5 s"):
        shell.pull(f"{tmp_path}/silent", tmp_path / "target", max_bytes=100)
    assert not (tmp_path / "target").exists()


def test_a_device_that_takes_nothing(shell, tmp_path):
    shell.stall = 0.5
    shell.run(f"mkfifo {tmp_path}/full; (exec >/dev/null 2>&1; sleep 20 <{tmp_path}/full) </dev/null &")
    (tmp_path / "source").write_bytes(bytes(32 << 20))
    with pytest.raises(DeviceError, match=r"moved no data for 0\.5 s"):
        shell.push(tmp_path / "source", f"{tmp_path}/full")


@pytest.mark.long
def test_a_device_that_takes_little_at_a_time(shell, tmp_path, monkeypatch):
    """Each piece in time, and all of them never."""
    monkeypatch.setattr(protocol, "_SLOWEST", 4 << 20)
    shell.stall = 3
    reader = 'while [ "$(dd bs=65536 count=1 2>/dev/null | wc -c)" != 0 ]; do sleep 0.1; done'
    shell.run(f"mkfifo {tmp_path}/slow; (exec >/dev/null 2>&1; {reader} <{tmp_path}/slow) </dev/null &")
    (tmp_path / "source").write_bytes(bytes(16 << 20))
    with pytest.raises(DeviceError, match="is too slow"):
        shell.push(tmp_path / "source", f"{tmp_path}/slow")


def test_whoever_waits_for_a_line_is_told_of_the_end(shell):
    process = shell.start("cat")
    lines: list[str] = []
    waiting = threading.Thread(target=lambda: lines.append(process.readline(60)))
    waiting.start()
    process.close()
    waiting.join(30)
    assert lines == [""]
