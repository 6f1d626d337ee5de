"""The lock of a device's store, and the only way to change the store."""

from __future__ import annotations

import base64
import difflib
import os
import platform
import re
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from toolchain import process, state
from toolchain.errors import BusyError, DeviceError
from toolchain.printable import printable
from toolchain.progress import reminding
from toolchain.shell import RemoteProcess, Shell
from toolchain.shell.bounds import MAX_OUTPUT

LEASE_S = 30
WITHIN = "TOOLCHAIN_DEVICE_LOCK"
"""Variable with the token of a lock that is held for this process and its children, which work inside of it."""
_HEARTBEAT_S = 5.0
_ANSWER_S = 30.0
_SCRIPT_S = 600.0  # an application may be restarted, or many releases be removed
_SLOWEST = 512 << 10  # bytes per second of a slow card, to read, hash and write
_ALIKE = 0.6  # the similarity of two random tokens is lower
_TOKEN = re.compile(r"[0-9a-f]*")
_LONGEST_OWNER = 1000
_OTHER = re.compile(r"other([0-9]{1,10})")
_EARLIER = re.compile(r"pid([0-9]{1,10})")
_END = re.compile(r"toolchain farm release [A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # the only command that a hint repeats
_LONGEST_HELD_S = 366 * 86400
_TIME = re.compile(r"[0-9]{1,10}")  # a device may print anything

# A lock's file has `STATE PID/START/BOOT/SEEN BEGAN OWNER`; OWNER ends with the token. START is the start of the
# process in the kernel's ticks, and BOOT identifies the boot of the device: a PID alone is soon reused. SEEN and BEGAN
# are seconds since the boot, which do not change when the clock is set. If a system hides its uptime from a login, as
# Android may, they are by the clock. An older toolchain wrote only PID, and BEGAN by the clock: its holder is never
# ended, since it gives no signs of life, and `busy` has `pidPID` in place of the time since the last one. A client that
# works inside of a lock that is held for it, as under `farm lock NAME -- CMD`, takes the one in `lock.within`;
# a client that takes the outer one needs that free too. Every field of a file is checked: any user may have written it.
SAID = """
now() {
  if { read -r now rest </proc/uptime && read -r boot </proc/sys/kernel/random/boot_id; } 2>/dev/null
  then now=${now%%.*}; else boot=none now=$(date +%s); fi
}
started() {
  ticks=
  { read -r ticks <"/proc/$1/stat"; } 2>/dev/null || return 0
  set -- ${ticks##*) }
  ticks=${20-}
}
said() {
  state= pid= who= start= from= seen=
  read -r state pid who <"$1" || true
  case $pid in */*/*/*)
    seen=${pid##*/}; pid=${pid%/*}
    from=${pid##*/}; pid=${pid%/*}
    start=${pid##*/}; pid=${pid%/*}
  esac
  case $pid in *[!0-9]*) pid= ;; esac
}
age() {
  now
  age=0
  case $seen in
    '') now=$(date +%s) ;;
    *[!0-9]*) ;;
    *) [ "$from" != "$boot" ] || [ "$now" -le "$seen" ] || age=$((now - seen)) ;;
  esac
}
alive() { [ -n "$pid" ] && [ "$from" = "$boot" ] && started "$pid" && [ -n "$ticks" ] && [ "$ticks" = "$start" ]; }
reaches() { # PROCESS FILE: whether it has the file open, as far as this login can see
  [ -r "/proc/$1/fd" ] || return 0
  for number in "/proc/$1/fd/"*; do [ ! "$number" -ef "$2" ] || return 0; done
  return 1
}
blame() { # FILE: where its owner is gone, the present holder is named instead
  ! alive || return 0
  inode=$(stat -c %i "$1" 2>/dev/null) && [ -r /proc/locks ] || return 0
  while read -r entry kind advisory access locker node rest; do
    case $kind/$node in FLOCK/*:"$inode") ;; *) continue ;; esac
    if [ "$locker" = "$pid" ] || [ ! -d "/proc/$locker" ] || ! reaches "$locker" "$1"; then continue; fi
    age=other$locker
    who="0 process $locker of $(stat -c %U "/proc/$locker" 2>/dev/null || echo another user)\tit did not say what for"
    return 0
  done </proc/locks
}
busy() {
  case $1 in other*) seen=1; esac
  [ -n "$seen" ] || [ -z "$pid" ] || set -- "pid$pid"
  printf 'busy %s %s %s\\n' "$1" "$now" "$who"
}
inside() { said "$ROOT/lock"; [ -n "$within" ] && [ "${who%"\t$within"}" != "$who" ]; }
"""

# A note overwrites the last one, which has about the same length, so that a client that reads meanwhile finds one.
NOTE = """
me() { started $$; mine=$ticks; }
note() { now; printf '%s %s/%s/%s/%s %s %s\\n' "$1" $$ "$mine" "$boot" "$now" "$began" "$owner" 1<>"$file"; }
"""

# flock frees the lock when its holder ends, in whatever way. A client behind a dead network would keep its holder
# alive, so the lock is also a lease: after LEASE_S without a sign of life the next client ends the holder, but not
# while a script runs. The holder itself makes all changes, so a client that lost the lock cannot make any. Korn shells,
# such as Android's, close descriptors above 2 before they start a program, unless the command redirects them, even to
# themselves.
TAKE = f"""{NOTE}
take() {{
  tries=0
  until flock -n 9 9>&9; do
    said "$1"
    age
    if [ "$state" != idle ] || [ "$age" -lt "$lease" ] || [ $tries -gt 50 ]; then
      blame "$1"
      busy "$age"
      exit
    fi
    ! alive || kill -9 "$pid" 2>/dev/null
    tries=$((tries + 1))
    sleep 0.1
  done
}}
still() {{ [ "$file" = "$ROOT/lock" ] || inside; }}
# Whoever can read a lock's file can have the lock, and keep it.
private() {{
  (umask 077; : >>"$1") || exit
  chmod 600 "$1" 2>/dev/null || :
}}
hold() {{
  umask 022
  me
  now
  began=$now
  mkdir -p "$ROOT" || exit
  file=$ROOT/lock
  ! inside 2>/dev/null || file=$ROOT/lock.within
  private "$file"
  exec 9>>"$file" || exit
  take "$file"
  : >"$file"
  note idle
  if [ "$file" = "$ROOT/lock" ] && [ -e "$ROOT/lock.within" ]; then
    private "$ROOT/lock.within"
    exec 8>&9 9>>"$ROOT/lock.within" || exit
    take "$ROOT/lock.within"
    exec 9>&8 8>&-
  fi
  still || exit
}}
"""

_HOLDER = """
hold
on_trial=
for entry in "$ROOT"/trial "$ROOT"/slots/*/trial; do [ ! -e "$entry" ] || on_trial=trial; done
echo held $on_trial
work() { set -eu; umask 022; cd "$ROOT"; eval "$(printf %s "$script" | base64 -d)"; }
while read -r word script; do
  case $word in run | attempt)
    still || exit
    note busy
    if [ "$word" = run ]; then (work) 9>&- </dev/null 2>&1; else (work) 9>&9 </dev/null 2>&1; fi
    printf '\\nEND-%s %s\\n' "$token" $?
  esac
  note idle
done
"""

# Looks without taking the lock, which would block other clients. A lock whose holder has ended is free.
PEEK = """
command -v flock >/dev/null || exit 0
file=$ROOT/lock
! inside 2>/dev/null || file=$ROOT/lock.within
if [ ! -r "$file" ]; then exit 0; fi
said "$file"
age
if [ -n "$start" ] && ! alive; then exit 0; fi
if [ -n "$pid" ] && [ ! -d "/proc/$pid" ]; then exit 0; fi
if [ "$state" = idle ] && [ "$age" -ge "$lease" ]; then exit 0; fi
(flock -n -s 9 9<&9) 9<"$file" || { blame "$file"; busy "$age"; }
"""


@dataclass(frozen=True)
class Owner:
    """The holder of a lock, as the message for others names it.

    Attributes:
        who: The user and the machine, perhaps a process.
        what: The purpose, in a few words.
        end: The command that releases the lock, on that machine; empty if it ends by itself.
    """

    who: str
    what: str
    end: str = ""

    @classmethod
    def here(cls, what: str) -> Owner:
        """Return this process's user as the owner."""
        name = state.user_name()
        return cls(f"{name}@{platform.node()}" if name else platform.node(), what)

    def line(self) -> str:
        """Return the owner as one line, as the lock's file has it."""
        return "\t".join(" ".join(text.split()) for text in (self.who, self.what, self.end))

    @classmethod
    def read(cls, line: str) -> Owner:
        """Parse a line; a lock that is just being taken has an empty one."""
        who, purpose, end = (*line.split("\t"), "", "", "")[:3]
        return cls(*(printable(text.strip()) for text in (who.strip() or "someone", purpose, end)))

    def __str__(self) -> str:
        return f"in use by {self.who}" + (f": {self.what}" if self.what else "")


class Lease:
    """A held lock.

    Args:
        shell: The device.
        holder: The process on the device that holds the lock.
        token: Name of this lease; scripts have it as `$token`.
        on_trial: Whether a release was on trial, in any slot, when the lock was taken; its command has ended.
    """

    def __init__(self, shell: Shell, holder: RemoteProcess, token: str, *, on_trial: bool = False) -> None:
        self.token = token
        self.on_trial = on_trial
        self._shell = shell
        self._holder = holder
        self._mark = f"END-{token}"
        self._writing = threading.Lock()
        self._held = True

    def run(self, script: str, size: int = 0) -> str:
        """Run a script in the store's root, with `set -eu`; return its output.

        `size` is the number of bytes that the script reads or writes, if known, for the time limit.

        Raises:
            DeviceError: The script failed, the lock is lost, or the device is.
        """
        with reminding(self._shell.report, f"{self._shell.name}, which changes its store"):
            return self._run_command("run", script, _SCRIPT_S + size / _SLOWEST)

    def attempt(self, script: str, seconds: float) -> str:
        """Run a script as `run` does; a process that it starts with `9>&9` also holds the lock until it ends.

        Args:
            script: The script; `$file` is the lock's file.
            seconds: Time limit, in addition to that of every script.

        Raises:
            DeviceError: As `run`.
        """
        return self._run_command("attempt", script, _SCRIPT_S + seconds)

    def _run_command(self, command: str, script: str, seconds: float) -> str:
        self._write(f"{command} {base64.b64encode(script.encode()).decode()}\n")
        lines: list[str] = []
        room, deadline = MAX_OUTPUT, time.monotonic() + seconds
        while not (line := self._holder.readline(max(0.0, deadline - time.monotonic()))).startswith(self._mark):
            room -= len(line)
            if not line:
                raise self._lost()
            if self._is_damaged_mark(line):
                raise DeviceError(
                    f"the end of a change of the store on {self._shell.name} is damaged: {printable(line.strip())}",
                    details=f"expected {self._mark} and an exit code",
                    hint="check the connection to the device, and run the command again",
                )
            if room < 0 or time.monotonic() > deadline:
                raise DeviceError(f"{self._shell.name} printed more than a change of its store should print")
            lines.append(line)
        output = "".join(lines).removesuffix("\n")
        if line.split() != [self._mark, "0"]:
            raise DeviceError(
                f"changing the store on {self._shell.name} failed",
                details=process.tail(output),
                hint="check that the folder is writable for this user and that the disk is not full",
            )
        return output

    def _is_damaged_mark(self, line: str) -> bool:
        """Whether a line is the end mark with wrong characters: the right one will never come."""
        mark, _, code = line.strip().partition(" ")
        if len(line) > 2 * len(self._mark) or not code.isdecimal():
            return False
        return difflib.SequenceMatcher(None, mark, self._mark, autojunk=False).ratio() >= _ALIKE

    def check(self) -> None:
        """Check that the lock was still held at the last heartbeat.

        Raises:
            DeviceError: It was lost.
        """
        if not self._held:
            raise self._lost()

    def confirm(self) -> None:
        """Check on the device that the lock is still held.

        Raises:
            DeviceError: It was lost, or the device does not answer.
        """
        self.check()
        self._run_command("run", ":", _ANSWER_S)

    def _write(self, text: str) -> None:
        try:
            with self._writing:
                self._holder.write(text)
        except DeviceError as fault:
            raise self._lost() from fault

    def _lost(self) -> DeviceError:
        self._held = False
        return DeviceError(
            f"this command lost its lock on {self._shell.name}",
            details=f"its holder on the device ended; another command may lock the device after {LEASE_S} s",
            hint="run the command again",
        )

    def beat(self) -> None:
        """Send a heartbeat."""
        self._write("alive\n")


@contextmanager
def hold(
    shell: Shell, set_root: str, owner: Owner, *, within: str = "", lost: Callable[[], None] = lambda: None
) -> Iterator[Lease]:
    """Hold the lock of a device's store for the time of a block.

    Args:
        shell: The device.
        set_root: Shell assignment of `ROOT`.
        owner: The holder, for the message to others.
        within: The token, which processes that may work inside of the lock have in `WITHIN`; a new one by default.
        lost: Called by another thread when the holder on the device has ended.

    Raises:
        BusyError: Someone else holds it.
        DeviceError: The folder cannot be written.
    """
    token = within or new_token()
    line = shlex.quote(f"{owner.line()}\t{token}")
    holder = shell.start(f"{_lock_environment(set_root)}; owner={line}; token={token}\n{SAID}{TAKE}{_HOLDER}")
    try:
        with reminding(shell.report, f"the lock of {shell.name}"):
            reply = _await_lock(shell, holder, set_root)
        lease = Lease(shell, holder, token, on_trial="trial" in reply)
        with _heartbeat(lease, lost):
            yield lease
    finally:
        holder.close()


def new_token() -> str:
    """Return a new name for a lock."""
    return secrets.token_hex(8)


def check_free(shell: Shell, set_root: str) -> None:
    """Check that the lock of a device's store is free, without taking it.

    Raises:
        BusyError: Someone holds it.
    """
    reply = shell.run(f"{_lock_environment(set_root)}\n{SAID}{PEEK}").stdout.split(maxsplit=3)
    if reply[:1] == ["busy"]:
        raise _busy_error(shell.name, reply)


def _lock_environment(set_root: str) -> str:
    within = os.environ.get(WITHIN, "")
    return f"{set_root}; lease={LEASE_S}; within={within if _TOKEN.fullmatch(within) else ''}"


def _busy_error(name: str, reply: Sequence[str]) -> BusyError:
    """Return the error for the reply `busy AGE NOW BEGAN OWNER` of a device.

    The age is the seconds since a heartbeat, `pidPID` for an older toolchain, or `otherPID` for another program.
    """
    age, now, details = (*reply[1:], "", "", "")[:3]
    began, _, line = details.partition(" ")
    owner = Owner.read((line if began.isdecimal() else details)[:_LONGEST_OWNER])
    seconds = int(now) - int(began) if _TIME.fullmatch(began) and _TIME.fullmatch(now) else -1
    since = ""
    if 0 <= seconds <= _LONGEST_HELD_S:  # by this machine's clock: that of the device may be wrong by years
        clock = time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))
        since = f"since {clock}, for {seconds} s by now; "
    ended = "when that has ended" + (f"; `{owner.end}` on that machine ends it" if _END.fullmatch(owner.end) else "")
    return BusyError(
        f"{name} is busy: {owner}",
        details=f"{since}{_sign_of_life(age)}",
        hint=f"run the command again {ended}, or with --wait SECONDS",
        owner=f"{owner.who}: {owner.what}" if owner.what else owner.who,
    )


def _sign_of_life(age_text: str) -> str:
    """Describe when the holder gave its last sign of life, or why it gives none."""
    if earlier := _EARLIER.fullmatch(age_text):
        return f"process {earlier[1]} there, of an older toolchain, holds the lock until its client disconnects"
    if other := _OTHER.fullmatch(age_text):
        return f"process {other[1]} there holds the lock and gives no signs of life: only its end frees the device"
    age = age_text if _TIME.fullmatch(age_text) else "some"
    return f"the last sign of life came {age} s ago; the device is free after {LEASE_S} s without one"


def _await_lock(shell: Shell, holder: RemoteProcess, set_root: str) -> list[str]:
    reply = holder.readline(_ANSWER_S).split(maxsplit=3)
    if reply[:1] == ["held"]:
        return reply
    if reply and reply[0] == "busy":
        raise _busy_error(shell.name, reply)
    holder.close()
    raise DeviceError(
        f"the store on {shell.name} cannot be locked ({set_root})",
        details=holder.stderr.strip(),
        hint="check that the folder is writable for this user and that the disk is not full",
    )


@contextmanager
def _heartbeat(lease: Lease, lost: Callable[[], None]) -> Iterator[None]:
    """Send heartbeats for the time of a block."""
    ended = threading.Event()

    def beat() -> None:
        try:
            while not ended.wait(_HEARTBEAT_S):
                lease.beat()
        except DeviceError:  # the next change of the store raises it as well
            lost()

    thread = threading.Thread(target=beat, daemon=True, name="lease-heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=_HEARTBEAT_S)
