"""The application of a device: it follows `current`, and a release on which it is not well is taken back."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolchain.device import scripts as stores
from toolchain.device.application import scripts
from toolchain.device.store import Generation, Store
from toolchain.errors import DeviceError, UnhealthyError
from toolchain.progress import stage

if TYPE_CHECKING:
    from toolchain.devices import Application

_RUNTIME = 'XDG_RUNTIME_DIR="${XDG_RUNTIME_DIR:-/run/user/$(id -u)}"'
_LOOK_S = 30
"""Seconds for a look: one command of the device's has at most so many."""
_AGE = re.compile(r"[0-9]{1,12}")  # a clock that was set back makes it less than nothing
_TRIAL = re.compile(r"([0-9]{1,9}) ([0-9]{1,9}) ([0-9]{1,12}) ([0-9a-f]{64})")
_ENDS = {"interrupted": "interrupted", "failed": "failed", "healthy": "healthy", "untouched": "healthy"}
_LOG_TITLES = {"words": "the last output of its command", "unit": "its unit"}


@dataclass(frozen=True)
class Started:
    """An application that was seen to be well on the current release.

    Attributes:
        name: Its unit, or its restart command.
        restarted: False if it ran, and was well, on this release already.
        seconds: Wall-clock seconds of the switch, the restart and the wait.
    """

    name: str
    restarted: bool
    seconds: float


@dataclass(frozen=True)
class Trial:
    """The last time that a release was tried with its application, as the device has it.

    Attributes:
        digest: The release; empty if that is not known.
        new: Its generation.
        old: The one before; 0 if there was none.
        began: When, in seconds since 1970, by the device's clock.
        state: `open` (not known yet), `healthy`, `failed` or `interrupted`, and taken back where it was a new one.
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
    """An application as it is just now.

    Attributes:
        name: Its unit, or its restart command.
        healthy: Whether its unit is active and its health command exits with 0.
        unit: What systemd says of the unit, such as `active (running)`; empty if it is no unit.
    """

    name: str
    healthy: bool
    unit: str


def activate(store: Store, digest: str, run: Application, progress: Callable[[str], None]) -> tuple[bool, Started]:
    """Make a release current, restart its application, and wait until that is well; the caller holds the lock.

    Args:
        store: The device's store.
        digest: The release, installed.
        run: The application.
        progress: Told that it is waited for.

    Returns:
        Whether the release was another one before, and how the application started.

    Raises:
        UnhealthyError: It is not well, and the release before is current again.
        DeviceError: The device is lost, or its trial broke off.
    """
    started, said = _run_trial(store, trial_script(digest, run), run, progress)
    new, old = said["trial"].split()[:2]
    return new != old, started


def roll_back(store: Store, run: Application, progress: Callable[[str], None]) -> tuple[Generation, Started]:
    """Go back to the activation before the current one, as `activate` goes to a new one.

    Raises:
        UnhealthyError: The application is not well there; what was current is current again.
        DeviceError: There is none, or the device is lost.
    """
    check_tools(store)
    started, _ = _run_trial(store, rollback_trial_script(run), run, progress)
    return next(generation for generation in store.releases.generations() if generation.current), started


def check_tools(store: Store) -> None:
    """See that a device has what a trial needs beside what every store needs.

    Raises:
        DeviceError: It has not.
    """
    asked = f"for tool in {scripts.TOOLS}; do command -v $tool >/dev/null || echo $tool; done"
    if lacks := store.look(asked).split():
        raise DeviceError(
            f"the device lacks {', '.join(lacks)}, which are needed to try a release with its application",
            hint="install coreutils and util-linux, or busybox, or remove the device's run table from devices.toml",
        )


def state(store: Store, run: Application) -> State:
    """Look whether an application is well; nothing is changed."""
    seconds = min(run.seconds, _LOOK_S)
    lines = store.look(f"{_settings(run, seconds)}\n{scripts.LOOK}").splitlines()
    said = dict(line.removeprefix("unit ").split("=", 1) for line in lines if line.startswith("unit ") and "=" in line)
    unit = f"{said.get('ActiveState', 'unknown')} ({said.get('SubState', 'unknown')})" if run.unit else ""
    return State(run.name, "well" in lines, unit)


def trial(store: Store) -> Trial | None:
    """Return the last trial of a device; None where there was none."""
    said = _parse_words(store.look(scripts.STATE))
    if not (found := _TRIAL.fullmatch(said.get("trial", ""))):
        return None
    new, old, began, digest = found.groups()
    ended = next((name for word, name in _ENDS.items() if word in said), "interrupted")
    if "open" not in said:
        return Trial(digest, int(new), int(old), int(began), ended)
    age = int(said["open"]) if _AGE.fullmatch(said["open"]) else 0
    return Trial(digest, int(new), int(old), int(began), "open", age)


def trial_script(digest: str, run: Application) -> str:
    """Return the script that tries a release with its application."""
    return stores.NEXT.format(digest=digest, sync=stores.SYNC) + _launch(run)


def rollback_trial_script(run: Application) -> str:
    """Return the script that tries the release before the current one with its application; it says `none` without."""
    return f"{stores.PREVIOUS.format()}\nold=${{number:-0}}\nnew=$target\n{_launch(run)}"


def _launch(run: Application) -> str:
    job = f"{_settings(run, run.seconds)}\n{scripts.JOB}"
    return scripts.LAUNCH.format(job=shlex.quote(job))


def _run_trial(
    store: Store, script: str, run: Application, progress: Callable[[str], None]
) -> tuple[Started, dict[str, str]]:
    """Have the device try a release.

    Args:
        store: The device's store.
        script: What tries it; it says `none` where there is none.
        run: The application.
        progress: Told that it is waited for.
    """
    store.releases.put_recovery()
    progress(stage(f"restarting {run.name}, and waiting up to {run.seconds} s until it is healthy"))
    start = time.perf_counter()
    try:
        output = store.attempt(script, 3 * run.seconds)
    except DeviceError as fault:
        raise _disconnected_error(fault) from fault
    seconds = time.perf_counter() - start
    if "none" in output.splitlines():
        raise store.releases.no_earlier()
    said = _parse_words(output)
    if "end" not in said or not _TRIAL.fullmatch(said.get("trial", "")):
        store.releases.recover()
        raise DeviceError(
            f"the trial on {store.name} ended early",
            details=output,
            hint="run `toolchain status` to see which release the device runs",
        )
    if "failed" in said:
        raise _unhealthy_error(store.name, run, output)
    return Started(run.name, "untouched" not in said, round(seconds, 3)), said


def _settings(run: Application, seconds: int) -> str:
    """Return the assignments that the scripts begin with."""
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
    """Return the commands that restart an application, and that end it where there is no release to run.

    systemd counts starts, and refuses one more of a unit that has just failed too often: also that of the old release.
    """
    if run.restart:
        return run.restart, run.restart
    user = f"{_RUNTIME}; export XDG_RUNTIME_DIR; systemctl --user"
    root = 'as=; [ "$(id -u)" = 0 ] || as="sudo -n"; $as systemctl'
    first = user if run.scope == "user" else root
    again = first.rpartition("; ")[2]
    return f"{first} reset-failed {run.unit} 2>/dev/null; {again} restart {run.unit}", f"{first} stop {run.unit}"


def _parse_words(output: str) -> dict[str, str]:
    """Read lines of a word and its text; the first one counts. What else Python takes for a line end is a letter."""
    lines = [line.partition(" ") for line in reversed(output.split("\n"))]
    return {word: text for word, _, text in lines}


def _unhealthy_error(name: str, run: Application, output: str) -> UnhealthyError:
    """Say that an application was not well, with its last words."""
    said = _parse_words(output)
    lines = output.split("\n")
    told = {
        word: [line.removeprefix(f"{word} ") for line in lines if line.startswith(f"{word} ")] for word in _LOG_TITLES
    }
    details = "\n".join("\n".join([f"{_LOG_TITLES[word]}:", *told[word]]) for word in _LOG_TITLES if told[word])
    log = f"journalctl {'--user ' if run.scope == 'user' else ''}--unit {run.unit}" if run.unit else run.health
    return UnhealthyError(
        f"{run.name} on {name} did not become healthy within {run.seconds} s; {_outcome_text(said)}",
        details=details,
        hint=f"run `{log}` on the device to see why; fix the application or the model, and run the command again",
    )


def _outcome_text(said: Mapping[str, str]) -> str:
    """Say what the device runs now."""
    new, old = said.get("trial", "? ?").split()[:2]
    if new == old:
        return "the device already ran this release, and keeps it"
    if "back" not in said:
        return (
            "the previous release could not be made current: the next command or the next start of the device does that"
        )
    if old == "0":
        return "there was no previous release, so the device has none now, and the application was stopped"
    well = (
        "and the application is healthy there"
        if said["back"].endswith(" well")
        else "and the application is NOT HEALTHY there either"
    )
    return f"generation {old} is current again, {well}"


def _disconnected_error(fault: DeviceError) -> DeviceError:
    """Say of a lost connection that the device goes on without it."""
    goes_on = "a started trial continues without this command; run `toolchain status` to see its result"
    fault.hint = "; ".join(filter(None, (fault.hint, goes_on)))
    return fault
