"""The application of a device: it is restarted on a new release, which is taken back if it is not healthy there.

A trial of a release is a POSIX sh script that runs in the store's root. It is one process on the device, in a session
of its own, that holds the store's lock: it goes on, and ends well or takes itself back, whatever becomes of the client.
It writes what happens to `trial.log`, a word and its text per line. What Python sets: `unit` and `scope`, or empty;
`restart` and `stop`, `health` or empty, and `within` seconds.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolchain.device import scripts as stores
from toolchain.device.lock import NOTE, SAID
from toolchain.device.scripts import SYNC, UNDO
from toolchain.device.store import Generation, Store
from toolchain.errors import DeviceError, UnhealthyError
from toolchain.progress import stage

if TYPE_CHECKING:
    from toolchain.devices import Application

TOOLS = "setsid timeout"

# Time is that since the start of the device: its clock may be set on the way. What a command starts must not hold the
# lock, or keep a pipe open; one that hangs is ended with the time that there was, and a health command that writes
# without an end before it has filled the disk, on which the way back needs some room.
_LOOK = """
clock() { read -r up rest </proc/uptime; echo "${up%.*}"; }
window() { until=$(($(clock) + within)); }
left() { echo $((until - $(clock))); }
bounded() {
  seconds=$(left)
  [ "$seconds" -gt 0 ] && timeout -s KILL "$seconds" sh -c "$1" </dev/null >"${words:-/dev/null}" 2>&1 9>&-
}
shown() { systemctl $scope show -p ActiveState -p SubState -p MainPID "$unit" 2>/dev/null 9>&-; }
active() {
  state=
  [ -n "$unit" ] || return 0
  state=$(shown) || return 1
  case $state in *ActiveState=active*) ;; *) return 1 ;; esac
  [ -n "$health" ] || [ "${first:=$state}" = "$state" ]
}
well() { active && { [ -z "$health" ] || bounded "ulimit -f 65536 2>/dev/null; $health"; }; }
"""

# With a health command the first good answer counts. Without one the unit must be active, with the same process, for
# the whole time.
_AWAIT = """
await() {
  first=
  while [ "$(left)" -gt 0 ]; do
    if well; then
      [ -z "$health" ] || return 0
    elif [ -z "$health" ]; then
      return 1
    fi
    case $state in *ActiveState=failed*) return 1 ;; esac
    sleep 0.5 9>&-
  done
  [ -z "$health" ]
}
settle() { if [ -n "$health" ]; then await; else sleep 1 9>&-; first=; active; fi; }
"""

# The marker is on the disk before the switch, and goes when the application was seen to be well, or runs on the old
# release again: whenever the power fails, what starts next has proved itself.
_MARK = f"""
mark() {{
  rm -f .current-old
  [ "$old" = 0 ] || ln -s "generations/$old" .current-old || return
  printf '%s %s %s\\n%s\\n' "$new" "$old" "$(date +%s)" "$again" >.trial-new || return
  {SYNC}
  mv -f .trial-new trial || return
  {SYNC}
}}
unmark() {{ rm -f trial .current-old; {SYNC}; }}
begin() {{ [ "$new" = "$old" ] || {{ mark && switch_to "$new"; }}; }}
restarted() {{ window; bounded "$1"; }}
lines() {{ cut -c 1-500 | sed "s/^/$1 /"; }}
explain() {{
  [ ! -s "$words" ] || tail -n 10 "$words" | lines words
  [ -z "$unit" ] || systemctl $scope status --no-pager --full --lines=10 "$unit" 2>&1 9>&- | lines unit
}}
back() {{
  undo || return
  if restarted "$again"; then code=well; else code=unwell; fi
  unmark
  [ "$code" = unwell ] || [ "$old" = 0 ] || settle || code=unwell
  echo "back $old $code"
}}
"""

# Whoever finds the lock taken is told by its file that the holder is alive, so the file names this process now.
JOB = f"""
set -u
{SAID}{NOTE}
trap '' HUP
ROOT=$1 file=$2 new=$3 old=$4
cd "$ROOT" || exit
me
said "$file"
began=${{who%% *}} owner=${{who#* }}
note busy
words=run/words
{UNDO}{_LOOK}{_AWAIT}{_MARK}
again=$restart
[ "$old" != 0 ] || again=$stop
echo "trial $new $old $(date +%s) $(basename "$(readlink "generations/$new")")"
window
first=
if [ "$new" = "$old" ] && well; then
  echo untouched
elif begin && restarted "$restart" && await; then
  unmark
  echo healthy
else
  echo failed
  explain
  [ "$new" = "$old" ] || back
fi
echo end
"""

# The lock's holder waits for its end, and so does the client, if it lives.
LAUNCH = """
mkdir -p run
rm -f run/words
: >run/words # now, while there is still room for it: without it no command would be started
setsid sh -c {job} trial "$ROOT" "$file" "$new" "$old" </dev/null >trial.log 2>&1 9>&9 &
wait $! || true
cat trial.log
"""

# Reads the state without the lock.
STATE = """
cd "$ROOT" 2>/dev/null || exit 0
[ ! -e trial.log ] || cat trial.log
if [ -e trial ] && read -r new old began <trial; then echo "open $(($(date +%s) - began))"; fi
"""

LOOK = f"""{_LOOK}
window
first=
if well; then echo well; else echo unwell; fi
[ -z "$unit" ] || shown | sed 's/^/unit /'
"""

_RUNTIME = 'XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"'
_LOOK_S = 30
"""Longest time of one command when the state is only read."""
_STOP_S = 120
_AGE = re.compile(r"[0-9]{1,12}")  # negative if the clock was set back
_TRIAL = re.compile(r"([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,12}) ([0-9a-f]{64})")
_ENDS = {"interrupted": "interrupted", "failed": "failed", "healthy": "healthy", "untouched": "healthy"}
_LOG_TITLES = {"words": "the last output of its command", "unit": "its unit"}


@dataclass(frozen=True)
class Started:
    """An application that is healthy on the current release.

    Attributes:
        name: Its unit, or its restart command.
        restarted: False if it already ran on this release and was healthy.
        seconds: Wall-clock seconds of the switch, the restart and the wait.
    """

    name: str
    restarted: bool
    seconds: float


@dataclass(frozen=True)
class Trial:
    """The last trial of a release with its application, as the device recorded it.

    Attributes:
        digest: The release; empty if unknown.
        new: Its generation.
        old: The previous generation; 0 if there was none.
        began: Its start in seconds since 1970, by the device's clock.
        state: `open` (still running), `healthy`, `failed` or `interrupted`; the last two take back a new release.
        seconds: How long it has been open, by the device's clock; None if it is not.
    """

    digest: str
    new: int
    old: int
    began: int
    state: str
    seconds: int | None = None


@dataclass(frozen=True)
class State:
    """The current state of an application.

    Attributes:
        name: Its unit, or its restart command.
        healthy: Whether its unit is active and its health command exits with 0.
        unit: The state of the systemd unit, such as `active (running)`; empty without a unit.
    """

    name: str
    healthy: bool
    unit: str


def activate(store: Store, digest: str, run: Application, progress: Callable[[str], None]) -> tuple[bool, Started]:
    """Make a release current, restart its application, and wait until it is healthy; the caller holds the lock.

    The release is installed. `progress` is called before the wait.

    Returns:
        Whether another release was current before, and how the application started.

    Raises:
        UnhealthyError: It is not healthy, and the previous release is current again.
        DeviceError: The device is lost, or the trial ended early.
    """
    started, log = _run_trial(store, trial_script(digest, run), run, progress)
    new, old = log["trial"].split()[:2]
    return new != old, started


def roll_back(store: Store, run: Application, progress: Callable[[str], None]) -> tuple[Generation, Started]:
    """Go back to the previous activation, with a trial as in `activate`.

    Raises:
        UnhealthyError: The application is not healthy there; the release that was current is current again.
        DeviceError: There is no earlier release, or the device is lost.
    """
    check_tools(store)
    started, _ = _run_trial(store, rollback_trial_script(run), run, progress)
    return next(generation for generation in store.releases.generations() if generation.current), started


def check_tools(store: Store) -> None:
    """Check that a device has the programs for a trial, in addition to those for every store.

    Raises:
        DeviceError: It lacks some.
    """
    script = f"for tool in {TOOLS}; do command -v $tool >/dev/null || echo $tool; done"
    if lacks := store.look(script).split():
        raise DeviceError(
            f"the device lacks {', '.join(lacks)}, which are needed to try a release with its application",
            hint="install coreutils and util-linux, or busybox, or remove the device's run table from devices.toml",
        )


def state(store: Store, run: Application) -> State:
    """Check whether an application is healthy, without changing anything."""
    seconds = min(run.seconds, _LOOK_S)
    lines = store.look(f"{_settings(run, seconds)}\n{LOOK}").splitlines()
    properties = dict(
        line.removeprefix("unit ").split("=", 1) for line in lines if line.startswith("unit ") and "=" in line
    )
    unit = f"{properties.get('ActiveState', 'unknown')} ({properties.get('SubState', 'unknown')})" if run.unit else ""
    return State(run.name, "well" in lines, unit)


def trials(store: Store) -> dict[str, Trial]:
    """Return the last trial of each slot that had one, by its name; the empty one is that of the store's own."""
    outputs = store.look_in_each_slot(STATE).items()
    return {slot: trial for slot, output in outputs if (trial := _parse_trial(output))}


def trial(store: Store) -> Trial | None:
    """Return the last trial of a device, in its slot; None if there was none."""
    return _parse_trial(store.look(STATE))


def _parse_trial(output: str) -> Trial | None:
    log = _parse_words(output)
    if not (match := _TRIAL.fullmatch(log.get("trial", ""))):
        return None
    new, old, began, digest = match.groups()
    ended = next((name for event, name in _ENDS.items() if event in log), "interrupted")
    if "open" not in log:
        return Trial(digest, int(new), int(old), int(began), ended)
    age = int(log["open"]) if _AGE.fullmatch(log["open"]) else 0
    return Trial(digest, int(new), int(old), int(began), "open", age)


def stop_script(run: Application) -> str:
    """Return the script that ends an application whose release is gone; it prints `not stopped` if that fails."""
    stop = shlex.quote(_commands(run)[1])
    return f'timeout -s KILL {_STOP_S} sh -c {stop} >/dev/null 2>&1 </dev/null 9>&- || echo "not stopped"'


def trial_script(digest: str, run: Application) -> str:
    """Return the script that tries a release with its application."""
    return stores.NEXT.format(digest=digest, sync=stores.SYNC) + _launch(run)


def rollback_trial_script(run: Application) -> str:
    """Return the script that tries the previous release with its application; it prints `none` if there is none."""
    return f"{stores.PREVIOUS.format()}\nold=${{number:-0}}\nnew=$target\n{_launch(run)}"


def _launch(run: Application) -> str:
    job = f"{_settings(run, run.seconds)}\n{JOB}"
    return LAUNCH.format(job=shlex.quote(job))


def _run_trial(
    store: Store, script: str, run: Application, progress: Callable[[str], None]
) -> tuple[Started, dict[str, str]]:
    """Run the trial of a release on the device.

    The script prints `none` if there is no release to try. `progress` is called before the wait.
    """
    store.releases.put_recovery()
    progress(stage(f"restarting {run.name}, and waiting up to {run.seconds} s until it is healthy"))
    start = time.perf_counter()
    try:
        output = store.attempt(script, 3 * run.seconds)
    except DeviceError as fault:
        # The trial is a process on the device, which goes on if only the connection was lost.
        continues = "a started trial continues without this command; run `toolchain status` to see its result"
        fault.hint = "; ".join(filter(None, (fault.hint, continues)))
        raise
    seconds = time.perf_counter() - start
    if "none" in output.splitlines():
        raise store.releases.no_earlier()
    log = _parse_words(output)
    if "end" not in log or not _TRIAL.fullmatch(log.get("trial", "")):
        store.releases.recover()
        raise DeviceError(
            f"the trial on {store.name} ended early",
            details=output,
            hint="run `toolchain status` to see which release the device runs",
        )
    if "failed" in log:
        raise _unhealthy_error(store.name, run, output)
    return Started(run.name, "untouched" not in log, round(seconds, 3)), log


def _settings(run: Application, seconds: int) -> str:
    """Return the variable assignments at the beginning of the scripts."""
    restart, stop = _commands(run)
    values = {
        "unit": run.unit or "",
        "scope": "--user" if run.unit and run.scope == "user" else "",
        "restart": restart,
        "stop": stop,
        "health": run.health or "",
        "within": str(seconds),
    }
    runtime = f"export {_RUNTIME}\n" if values["scope"] else ""
    return runtime + "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())


def _commands(run: Application) -> tuple[str, str]:
    """Return the command that restarts an application, and the one that stops it when there is no release.

    systemd counts starts, and refuses to start a unit that has just failed too often, even on the old release: so the
    counter is reset first.
    """
    if run.restart:
        return run.restart, run.restart
    user = f"{_RUNTIME}; export XDG_RUNTIME_DIR; systemctl --user"
    root = 'as=; [ "$(id -u)" = 0 ] || as="sudo -n"; $as systemctl'
    first = user if run.scope == "user" else root
    again = first.rpartition("; ")[2]
    return f"{first} reset-failed {run.unit} 2>/dev/null; {again} restart {run.unit}", f"{first} stop {run.unit}"


def _parse_words(output: str) -> dict[str, str]:
    """Parse lines of an event and its text; the first line of an event counts.

    Only a newline ends a line: splitlines() would also split at other characters, which a text may contain.
    """
    lines = [line.partition(" ") for line in reversed(output.split("\n"))]
    return {event: text for event, _, text in lines}


def _unhealthy_error(name: str, run: Application, output: str) -> UnhealthyError:
    """Return the error of an application that is not healthy, with the end of its log."""
    events = _parse_words(output)
    lines = output.split("\n")
    excerpts = {
        kind: [line.removeprefix(f"{kind} ") for line in lines if line.startswith(f"{kind} ")] for kind in _LOG_TITLES
    }
    details = "\n".join("\n".join([f"{_LOG_TITLES[kind]}:", *excerpts[kind]]) for kind in _LOG_TITLES if excerpts[kind])
    log = f"journalctl {'--user ' if run.scope == 'user' else ''}--unit {run.unit}" if run.unit else run.health
    return UnhealthyError(
        f"{run.name} on {name} did not become healthy within {run.seconds} s; {_outcome_text(events)}",
        details=details,
        hint=f"run `{log}` on the device to see why; fix the application or the model, and run the command again",
    )


def _outcome_text(log: Mapping[str, str]) -> str:
    """Describe which release the device runs now."""
    new, old = log.get("trial", "? ?").split()[:2]
    if new == old:
        return "the device already ran this release, and keeps it"
    if "back" not in log:
        return (
            "the previous release could not be made current: the next command or the next start of the device does that"
        )
    if old == "0":
        return "there was no previous release, so the device has none now, and the application was stopped"
    well = (
        "and the application is healthy there"
        if log["back"].endswith(" well")
        else "and the application is NOT HEALTHY there either"
    )
    return f"generation {old} is current again, {well}"
