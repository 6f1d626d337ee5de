"""The local shell, addresses, and what the SSH side reads from configuration and known_hosts files."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from toolchain import _ssh_host_keys as host_keys
from toolchain import _ssh_route as route
from toolchain import shell
from toolchain.errors import DeviceError, InputError
from toolchain.shell import Address, SshOptions, open_shell, parse_address


@pytest.fixture
def local():
    with open_shell(None) as opened:
        yield opened


def test_import_stays_cheap():
    code = "import sys, toolchain.shell; sys.exit('paramiko' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("board", Address("board")),
        ("root@board", Address("board", "root")),
        ("root@10.0.0.5:2222", Address("10.0.0.5", "root", 2222)),
        ("[::1]:22", Address("::1", None, 22)),
        ("[::1]", Address("::1")),
        ("::1", Address("::1")),
        ("user@[fe80::1%eth0]:2222", Address("fe80::1%eth0", "user", 2222)),
        ("first.last@board_1.lab", Address("board_1.lab", "first.last")),
    ],
)
def test_addresses(text, expected):
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "@board", "root@", "a b", "board:", "board:0", "board:65536", "board:ssh", "board:²", "-oX=x"),
        *("[board]:22", "[::1", "[::1]22", "[::1]:", "a:b:c", "x@-y", "root@board;reboot", "$(id)@board", "a\nb"),
    ],
)
def test_wrong_addresses_are_refused(text):
    with pytest.raises(InputError) as caught:
        parse_address(text)
    assert caught.value.details
    assert "user@host" in caught.value.hint


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
    assert time.monotonic() - started < 5


def test_local_push_resumes_and_counts(local, tmp_path):
    source, target = tmp_path / "source", tmp_path / "it's the target"
    data = os.urandom(3 * shell.CHUNK + 17)
    source.write_bytes(data)
    target.write_bytes(data[:1000])
    seen: list[int] = []
    local.push(source, str(target), offset=1000, progress=seen.append)
    assert target.read_bytes() == data
    assert seen == sorted(seen)
    assert seen[-1] == len(data)
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
    local.pull(str(source), target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_mode & 0o444 == 0o444
    with pytest.raises(DeviceError, match="missing") as caught:
        local.pull(str(tmp_path / "missing"), target)
    assert "No such file" in caught.value.details
    assert target.read_bytes() == source.read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["target"]
    with pytest.raises(InputError, match="cannot write"):
        local.pull(str(source), tmp_path / "no folder" / "target")


def test_local_process_talks_in_lines(local):
    held = local.start('while read -r line; do echo "<$line>"; done; echo warned >&2; exit 5')
    held.write("one\ntwo\n")
    assert held.readline(5) == "<one>\n"
    assert held.readline(5) == "<two>\n"
    with pytest.raises(DeviceError, match="no line within"):
        held.readline(0.05)
    assert held.close() == 5
    assert held.close() == 5


def test_local_process_end_of_output(local):
    held = local.start("printf 'no newline'; echo why >&2")
    assert held.readline(5) == "no newline"
    assert held.readline(5) == ""
    assert held.stderr == "why\n"
    assert held.close() == 0


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
    held = local.start(f"sleep 300 & echo $! > {tmp_path}/pid; echo ready; exec sleep 300")
    assert held.readline(5) == "ready\n"
    pid = int((tmp_path / "pid").read_text())
    assert held.close() is None
    with pytest.raises(ProcessLookupError):
        _wait_until_gone(pid)


def _wait_until_gone(pid: int) -> None:
    """Raise ProcessLookupError once a process is gone; orphans are zombies until init has seen them."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.05)


def test_password_is_not_shown():
    assert "secret" not in repr(SshOptions(password="secret"))  # noqa: S106


# --- configuration ---


def _route(tmp_path, text, host, **options):
    (tmp_path / "config").write_text(text)
    return route.Config(SshOptions(ssh_dir=tmp_path, **options)).route(parse_address(host))


def test_config_alias(tmp_path):
    (hop,) = _route(
        tmp_path,
        "Host board\n HostName 10.1.2.3\n User pi\n Port 2200\n IdentityFile ~/.ssh/lab\n IdentitiesOnly yes\n"
        " UserKnownHostsFile ~/.ssh/lab_hosts\n GlobalKnownHostsFile none\n ConnectTimeout 3\n",
        "board",
    )
    assert (hop.name, hop.timeout, hop.identities_only) == ("pi@10.1.2.3:2200", 3, True)
    assert hop.identities == (tmp_path / "lab",)
    assert hop.known_hosts == (tmp_path / "lab_hosts",)
    assert hop.key_name == "[10.1.2.3]:2200"


def test_address_and_options_win_over_config(tmp_path):
    text = "Host board\n HostName h\n User pi\n Port 2200\n ConnectTimeout 3\n HostKeyAlias Lab-Board\n"
    known = (tmp_path / "mine",)
    (hop,) = _route(tmp_path, text, "root@board:22", connect_timeout=7, known_hosts=known)
    assert (hop.name, hop.timeout, hop.known_hosts) == ("root@h:22", 7, known)
    assert hop.key_name == "lab-board"


def test_config_jump_chain(tmp_path):
    text = (
        "Host board\n ProxyJump a@one:1,two\nHost two\n Port 2\n User b\n ProxyJump never\n"
        "Host one\n HostName 1.1.1.1\n"
    )
    hops = _route(tmp_path, text, "c@board")
    assert [hop.name for hop in hops] == ["a@1.1.1.1:1", "b@two:2", "c@board:22"]
    assert (hops[2].jumps, hops[2].via) == (("a@one:1", "two"), "b@two:2")


def test_config_jump_circle(tmp_path):
    with pytest.raises(InputError, match="circles"):
        _route(tmp_path, "Host a\n ProxyJump b\nHost b\n ProxyJump a\n", "a")


def test_config_include(tmp_path):
    (tmp_path / "config.d").mkdir()
    (tmp_path / "config.d" / "lab").write_text("Host board\n HostName 10.9.9.9\n User pi\n")
    (hop,) = _route(tmp_path, "Include config.d/*\n", "board")
    assert hop.name == "pi@10.9.9.9:22"


@pytest.mark.parametrize("text", ["Nonsense\n", "Host a\n Port many\n", "Match exec true\n User x\n"])
def test_wrong_config_is_an_input_error(tmp_path, text):
    with pytest.raises(InputError):
        _route(tmp_path, text, "a")


def test_missing_config_is_an_error_only_if_asked_for(tmp_path):
    assert route.Config(SshOptions(ssh_dir=tmp_path)).route(Address("h", "u"))[0].name == "u@h:22"
    with pytest.raises(InputError, match="nowhere"):
        route.Config(SshOptions(config_file=tmp_path / "nowhere"))


def test_complex_proxy_command_is_refused(tmp_path):
    (tmp_path / "config").write_text("Host board\n ProxyCommand nc %h %p | tee log\n")
    with pytest.raises(InputError, match="needs a shell"):
        open_shell("u@board", config=SshOptions(ssh_dir=tmp_path))


# --- known_hosts ---


def _hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("patterns", "name", "expected"),
    [
        ("board", "board", True),
        ("Board", "board", True),
        ("other,board", "board", True),
        ("board", "board2", False),
        ("*.lab", "a.lab", True),
        ("b?", "b1", True),
        ("*.lab,!bad.lab", "bad.lab", False),
        ("[10.0.0.1]:2222", "[10.0.0.1]:2222", True),
        ("10.0.0.1", "[10.0.0.1]:2222", False),
        ("[::1]:22", "[::1]:22", True),
        (_hashed("board"), "board", True),
        (_hashed("board"), "other", False),
        ("|1|broken", "board", False),
    ],
)
def test_known_hosts_patterns(patterns, name, expected):
    assert host_keys._matches(patterns, name) is expected


def test_known_hosts_lines(tmp_path):
    (tmp_path / "known").write_text("# comment\n\nshort line\nboard ssh-ed25519 QUJD me\n@revoked * ssh-rsa QUJD\n")
    keys = list(host_keys._known_keys(tmp_path / "known"))
    assert [(key.marker, key.kind, key.blob, key.place[1]) for key in keys] == [
        ("", "ssh-ed25519", b"ABC", 4),
        ("@revoked", "ssh-rsa", b"ABC", 5),
    ]
    assert list(host_keys._known_keys(tmp_path / "missing")) == []
