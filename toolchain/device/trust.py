"""Whether a device takes a release: where it has a file of trusted keys, a program of ours checks signatures there.

Nothing here decides: the program that runs a release checks it again when it loads it. What is asked here comes before
anything is changed, so that the device keeps the release that it had. See docs/security.md.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from toolchain.bundle import SIGNATURES, Bundle
from toolchain.device.runner import UNTRUSTED
from toolchain.device.scripts import PREVIOUS
from toolchain.device.store import Store
from toolchain.errors import DeviceError, InputError, VerificationError
from toolchain.native.programs import RUNNER

FOLDER = "/etc/edge-toolchain"
"""Where a device says whom it trusts: kTrustFolder of runtime/trust/trusted.h."""

_HASHING_S = 300
_USAGE = 2
_REMEDY = "`toolchain sign` signs a package; docs/security.md tells which keys a device takes"

# What the runner says of a release: one line of JSON, or why not, and `code N`. The newest runner that the device has
# checks what an older one deployed, if none is named.
_VERIFY = f"""
[ -e {FOLDER}/trusted ] || {{{{ echo open; exit 0; }}}}
runner={{runner}}
[ -n "$runner" ] || runner=$(ls -t runners/*/{RUNNER} 2>/dev/null | head -n 1)
if [ -x "$runner" ]; then
  code=0
  "$runner" --verify {{release}} {{more}} 2>&1 || code=$?
  echo "code $code"
else echo "code none"; fi
"""


_LOOK = f"""
[ ! -e {FOLDER}/trusted ] || echo asks
[ ! -e "$ROOT/current/{SIGNATURES}" ] || echo signed
"""


@dataclass(frozen=True)
class Verified:
    """What a device found of a release that it takes.

    Attributes:
        bundle: The bundle's digest.
        model: The model's name, as its signers have it.
        board: Board type, as they have it.
        sequence: Its place among the releases of the model.
        minimum: The least sequence from it on; 0 leaves that.
        floor: The least sequence of this model that the device takes.
        signers: Who signed, by the names that the device knows them by.
    """

    bundle: str
    model: str
    board: str
    sequence: int
    minimum: int
    floor: int
    signers: tuple[str, ...]


@dataclass(frozen=True)
class State:
    """What a device makes of its current release.

    Attributes:
        takes: `signed` releases only, or `any`.
        signed: Whether the release has signatures, be they anybody's.
        verified: What the device found; None where it takes any release, or not this one.
        refused: Why it does not take this one any more.
    """

    takes: str
    signed: bool
    verified: Verified | None = None
    refused: str = ""


_READER = TypeAdapter(Verified)


def asks(store: Store) -> bool:
    """Whether a device takes signed releases only."""
    return bool(store.look(f"[ ! -e {FOLDER}/trusted ] || echo asks"))


def check_signed(store: Store, bundle: Bundle) -> None:
    """See, before anything is sent, that a bundle has signatures where a device asks for some.

    Raises:
        VerificationError: It has none.
    """
    if (bundle.statement is None or bundle.signatures is None) and asks(store):
        raise VerificationError(
            f"{store.name} takes signed releases only, and {bundle.manifest.name} {bundle.digest[:16]} is not signed",
            hint=_REMEDY,
        )


def verify(store: Store, release: str, runner: str = "") -> Verified | None:
    """Have a device check a release: who signed it, and every file of it; the caller holds the lock.

    Args:
        store: The device's store.
        release: Folder of the release in the store.
        runner: Folder of the runner that checks; the newest one of the store by default.

    Returns:
        What it found; None where the device takes any release.

    Raises:
        VerificationError: It does not take this one.
        DeviceError: It has no program that could tell.
    """
    # A minimum that a power cut kept from being noted, after the release that asks for it became current.
    store.attempt(f"[ ! -d current/ ] || {{\n{_script('current/', runner, '--floor 0')}\n}}", _HASHING_S)
    return _answer(store, store.attempt(_script(release, runner), _HASHING_S))


def verify_previous(store: Store) -> Verified | None:
    """Have a device check the release before the current one, as `verify`; None also where there is none."""
    if not asks(store):
        return None
    target = store.attempt(f"{PREVIOUS.format()}\necho generations/$target", 0)
    return None if "none" in target.split() else verify(store, target.strip())


def state(store: Store) -> State:
    """Look what a device makes of its current release; nothing is changed.

    Raises:
        DeviceError: It has no program that could tell.
    """
    said = store.look(_LOOK).split()
    if "asks" not in said:
        return State("any", signed="signed" in said)
    try:
        found = _answer(store, store.look(f'cd "$ROOT"\n{_script("current/", "")}'))
    except VerificationError as fault:
        return State("signed", signed="signed" in said, refused=fault.details)
    return State("signed", signed=True, verified=found)


def raise_floor(store: Store, floor: int, runner: str = "") -> Verified:
    """Have a device take no release of its current one's model below a sequence any more; the caller holds the lock.

    Args:
        store: The device's store.
        floor: The sequence; 0 for the minimum that the release's signers ask for, if they do.
        runner: As for `verify`.

    Raises:
        InputError: The current release itself is below it; or the device takes any release.
        VerificationError: The device does not take its current release.
    """
    said = store.attempt(_script("current/", runner, f"--floor {floor:d}"), _HASHING_S)
    found = _answer(store, said)
    if found is None:
        raise InputError(
            f"{store.name} takes any release, signed or not", hint=f"{FOLDER}/trusted there names who is trusted"
        )
    return found


def note_minimum(store: Store, found: Verified | None, runner: str) -> Verified | None:
    """Have a device note what the signers of its new release ask for, if they do; the caller holds the lock."""
    return raise_floor(store, 0, runner) if found else None


def _script(release: str, runner: str, more: str = "") -> str:
    return _VERIFY.format(runner=_program(runner), release=shlex.quote(release), more=more)


def _program(runner: str) -> str:
    return shlex.quote(f"{runner}/{RUNNER}" if runner else "")


def _answer(store: Store, output: str) -> Verified | None:
    lines = output.splitlines()
    if lines[-1:] == ["open"]:
        return None
    words = "\n".join(lines[:-1])
    code = lines[-1].removeprefix("code ") if lines else ""
    if code == "0":
        return _read(store, lines)
    if code == str(UNTRUSTED):
        raise VerificationError(
            f"{store.name} does not take this release", details=words, hint=f"it keeps what it runs; {_REMEDY}"
        )
    if code == str(_USAGE):
        raise InputError(f"{store.name} refuses this floor", details=words, hint="`toolchain status` shows what it has")
    raise DeviceError(
        f"{store.name} cannot check the release",
        details=words or "it has no program that could: nothing was deployed there by this toolchain",
        hint="`toolchain deploy` brings one",
    )


def _read(store: Store, lines: list[str]) -> Verified:
    try:
        return _READER.validate_json(next((line for line in lines if line.startswith("{")), ""))
    except ValidationError as fault:
        raise VerificationError(
            f"{store.name} answers what no program of ours says", details=str(fault), hint="deploy again"
        ) from fault
