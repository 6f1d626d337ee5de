"""The lock of a device's store, and the only way to change what lies under it."""

from __future__ import annotations

import base64
import secrets
import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from toolchain import process
from toolchain.errors import DeviceError
from toolchain.shell import RemoteProcess, Shell

LEASE_S = 30
_HEARTBEAT_S = 5.0
_ANSWER_S = 30.0
_SCRIPT_S = 1800.0  # hashing or syncing a large network on a slow card takes minutes

# flock frees the lock when its holder ends, however it ends. A client that vanished behind a dead network would keep
# its holder alive, so the lock is also a lease: after LEASE_S without a sign of life the next client ends the holder.
# While a script runs the holder is well by definition. All changes are made by the holder itself: whoever lost the
# lock has nobody left to make them. Korn shells, Android's among them, close descriptors above 2 before they start a
# program, unless its own line redirects them, if only to themselves.
_HOLDER = """
note() { printf '%s %s %s\\n' "$1" $$ "$owner" >"$ROOT/lock"; }
mkdir -p "$ROOT" || exit
exec 9>>"$ROOT/lock" || exit
tries=0
until flock -n 9 9>&9; do
  read -r state pid who <"$ROOT/lock" || true
  age=$(($(date +%s) - $(stat -c %Y "$ROOT/lock")))
  if [ "$state" != idle ] || [ "$age" -lt "$lease" ] || [ $tries -gt 50 ]; then echo "busy $age $who"; exit; fi
  kill -9 "$pid" 2>/dev/null
  tries=$((tries + 1))
  sleep 0.1
done
note idle
echo held
while read -r word script; do
  if [ "$word" = run ]; then
    note busy
    (set -eu; umask 022; cd "$ROOT"; eval "$(printf %s "$script" | base64 -d)") 9>&- </dev/null 2>&1
    printf '\\nEND-%s %s\\n' "$token" $?
  fi
  note idle
done
"""


class Lease:
    """A held lock.

    Args:
        shell: The device.
        holder: The process on the device that holds the lock.
        token: Names this lease; scripts have it as `$token`.
    """

    def __init__(self, shell: Shell, holder: RemoteProcess, token: str) -> None:
        self.token = token
        self._shell = shell
        self._holder = holder
        self._mark = f"END-{token}"
        self._writing = threading.Lock()

    def run(self, script: str) -> str:
        """Run a script in the store's root, with `set -eu`; return its output.

        Raises:
            DeviceError: The script failed, the lock is lost, or the device is.
        """
        self._write(f"run {base64.b64encode(script.encode()).decode()}\n")
        lines: list[str] = []
        while not (line := self._holder.readline(_SCRIPT_S)).startswith(self._mark):
            if not line:
                raise self._lost()
            lines.append(line)
        output = "".join(lines).removesuffix("\n")
        if line.split() != [self._mark, "0"]:
            raise DeviceError(
                f"{self._shell.name} cannot change its store",
                details=process.tail(output),
                hint="is the folder writable for this login, and is the disk not full?",
            )
        return output

    def _write(self, text: str) -> None:
        try:
            with self._writing:
                self._holder.write(text)
        except DeviceError as fault:
            raise self._lost() from fault

    def _lost(self) -> DeviceError:
        return DeviceError(
            f"this deploy lost its lock on {self._shell.name}",
            details=f"its holder there ended; after {LEASE_S} s without a sign of life another deploy may end it",
            hint="run the command again",
        )

    def beat(self) -> None:
        """Give a sign of life."""
        self._write("alive\n")


@contextmanager
def hold(shell: Shell, set_root: str, owner: str) -> Iterator[Lease]:
    """Hold the lock of a device's store for the time of a block.

    Args:
        shell: The device.
        set_root: Shell assignment of `ROOT`.
        owner: Who holds it, for the message that others get; one line.

    Raises:
        DeviceError: Someone else holds it, or the folder cannot be written.
    """
    token = secrets.token_hex(8)
    values = f"{set_root}; owner={shlex.quote(owner)}; token={token}; lease={LEASE_S}"
    holder = shell.start(f"{values}\n{_HOLDER}")
    try:
        _await(shell, holder, set_root)
        lease = Lease(shell, holder, token)
        with _beating(lease):
            yield lease
    finally:
        holder.close()


def _await(shell: Shell, holder: RemoteProcess, set_root: str) -> None:
    words = holder.readline(_ANSWER_S).split(maxsplit=2)
    if words == ["held"]:
        return
    if words and words[0] == "busy":
        who = words[2].strip() if words[2:] else "someone"
        raise DeviceError(
            f"{shell.name} is busy: {who} is deploying to it",
            details=f"the last sign of life came {words[1]} s ago; {LEASE_S} s without one free the device",
            hint="run the command again when that deploy has ended",
        )
    holder.close()
    raise DeviceError(
        f"the store on {shell.name} cannot be locked ({set_root})",
        details=holder.stderr.strip(),
        hint="is the folder writable for this login, and is the disk not full?",
    )


@contextmanager
def _beating(lease: Lease) -> Iterator[None]:
    """Send signs of life for as long as the block runs."""
    ended = threading.Event()

    def beat() -> None:
        # A lost lock shows in the next change; a thread has nobody to tell.
        with suppress(DeviceError):
            while not ended.wait(_HEARTBEAT_S):
                lease.beat()

    thread = threading.Thread(target=beat, daemon=True, name="lease-heartbeat")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=_HEARTBEAT_S)
