"""Whether a device takes a release: where it has a file of trusted keys, a program of ours checks signatures there.

Nothing here decides: the program that runs a release checks it again when it loads it. What is asked here comes before
anything is changed, so that the device keeps the release that it had. See docs/security.md.
"""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from toolchain.bundle import Bundle
from toolchain.device.runner import UNTRUSTED
from toolchain.device.scripts import ASKS, PREVIOUS, SYNC, TRUST
from toolchain.device.shipment import SIGNED
from toolchain.device.store import DeviceFacts, Store
from toolchain.errors import DeviceError, InputError, ToolchainError, VerificationError
from toolchain.native.programs import RUNNER

_HASHING_S = 300
_FLOOR = 8  # how the runner ends where the release itself is below a floor: kExitFloor
_REMEDY = "sign the package with `toolchain sign`, and check the device's trusted keys (docs/security.md)"

# What the runner says of a release: one line of JSON, or why not, and `code N`. The newest runner that the device has
# checks what an older one deployed, if none is named.
_CHECK = f"""
{ASKS.replace("{", "{{").replace("}", "}}")} || {{{{ echo open; exit 0; }}}}
runner={{runner}}
[ -n "$runner" ] || runner=$(ls -t runners/*/{RUNNER} 2>/dev/null | head -n 1)
code=none
if [ -L releases ]; then
  echo "releases is a link, so floors would not be found: make the whole folder a link instead"
elif [ -x "$runner" ]; then
  code=0
  "$runner" --verify {{release}} {{more}} 2>&1 || code=$?
fi
echo "code $code"
"""

# Both in one rename: a power cut leaves the old statement with its own signatures, or the new one with its own.
_ATTACH = """
if [ ! blobs/sha256/{signed} -ef releases/{digest}/{name} ]; then
  new=releases/{digest}/.new-signed
  rm -f $new
  ln blobs/sha256/{signed} $new 2>/dev/null || cp -p blobs/sha256/{signed} $new
  {sync}
  mv -f $new releases/{digest}/{name}
  {sync}
fi
"""

_LOOK = f"""
{ASKS} && echo asks
[ ! -e "$ROOT/current/{SIGNED}" ] || echo signed
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
        unknown: Why it cannot tell.
    """

    takes: str
    signed: bool
    verified: Verified | None = None
    refused: str = ""
    unknown: str = ""


_READER = TypeAdapter(Verified)


def check_signed(name: str, facts: DeviceFacts, bundle: Bundle) -> None:
    """See, before anything is sent, that a bundle has signatures where a device asks for some.

    Raises:
        VerificationError: It has none.
    """
    if facts.signed_only and (bundle.statement is None or bundle.signatures is None):
        raise VerificationError(
            f"{name} accepts only signed releases, but {bundle.manifest.name} {bundle.digest[:16]} is not signed",
            hint=_REMEDY,
        )


def check_script(release: str, runner: str = "", more: str = "") -> str:
    """Return the script by which a device checks a release; its last line says `open`, or `code N`.

    Args:
        release: Folder of the release in the store.
        runner: The program that checks; the newest one of the store by default.
        more: What else it is told.
    """
    return _CHECK.format(runner=shlex.quote(runner), release=shlex.quote(release), more=more)


def note_script(runner: str = "") -> str:
    """Return the script by which a device notes the minimum that the signers of its current release ask for."""
    return f"if [ -d current/ ]; then\n{check_script('current/', runner, '--floor 0')}\nfi"


def attach_script(digest: str, signed: str) -> str:
    """Return the script that gives a release its statement and signatures.

    Args:
        digest: The bundle's.
        signed: Digest of the blob that holds them.
    """
    return _ATTACH.format(digest=digest, signed=signed, name=SIGNED, sync=SYNC)


def blob_argument(signed: str) -> str:
    """Return what tells the runner to read what was signed from a blob; empty where there is none."""
    return f"--signed blobs/sha256/{signed}" if signed else ""


def take(store: Store, digest: str, runner: str, signed: str) -> Verified | None:
    """Have a device check an installed release with its new signatures, and only then give them to it.

    The caller holds the lock. A release that was refused keeps the signatures that it had: it may be the current one.

    Args:
        store: The device's store.
        digest: The bundle's.
        runner: Folder of the runner that checks.
        signed: Digest of the blob with what was signed; empty for what the release has.

    Returns:
        What the device found; None where it takes any release.

    Raises:
        VerificationError: It does not take this one.
        DeviceError: It has no program that could tell.
    """
    if not signed:  # then it does not ask: see `check_signed`
        return None
    verified = verify(store, f"releases/{digest}", f"{runner}/{RUNNER}", blob_argument(signed))
    store.attempt(attach_script(digest, signed), 0)
    return verified


def verify(store: Store, release: str, runner: str = "", more: str = "") -> Verified | None:
    """Have a device check a release: who signed it, and every file of it; the caller holds the lock.

    Args:
        store: The device's store.
        release: Folder of the release in the store.
        runner: The program that checks; the newest one of the store by default.
        more: What else it is told.

    Returns:
        What it found; None where the device takes any release.

    Raises:
        VerificationError: It does not take this one.
        DeviceError: It has no program that could tell.
    """
    # A minimum that a power cut kept from being noted, after the release that asks for it became current.
    with contextlib.suppress(VerificationError):  # what runs may be none that the device takes any more
        _answer(store, store.attempt(note_script(runner), _HASHING_S) or "open")
    return _answer(store, store.attempt(check_script(release, runner, more), _HASHING_S))


def verify_previous(store: Store) -> Verified | None:
    """Have a device check the release before the current one, as `verify`; None also where there is none."""
    if not store.facts().signed_only:
        return None
    target = store.attempt(f"{PREVIOUS.format()}\necho generations/$target", 0)
    return None if "none" in target.split() else verify(store, target.strip())


def state(store: Store) -> State:
    """Look what a device makes of its current release; nothing is changed."""
    facts = store.look(f"{_LOOK}true").split()
    if "asks" not in facts:
        return State("any", signed="signed" in facts)
    try:
        verified = _answer(store, store.look(f'cd "$ROOT"\n{check_script("current/")}'))
    except VerificationError as fault:
        return State("signed", signed="signed" in facts, refused=fault.details)
    except DeviceError as fault:  # a runner of before, say: the rest of the status is worth having
        return State("signed", signed="signed" in facts, unknown=f"{fault.message}: {fault.details}")
    return State("signed", signed=True, verified=verified)


def raise_floor(store: Store, floor: int) -> Verified:
    """Have a device take no release of its current one's model below a sequence any more; the caller holds the lock.

    Args:
        store: The device's store.
        floor: The sequence.

    Raises:
        InputError: The current release itself is below it; or the device takes any release.
        VerificationError: The device does not take its current release.
    """
    verified = _answer(store, store.attempt(check_script("current/", more=f"--floor {floor:d}"), _HASHING_S))
    if verified is None:
        raise InputError(
            f"{store.name} does not check signatures, so a floor has no effect",
            hint=f"create {TRUST}/trusted on it first (docs/security.md)",
        )
    return verified


def note_minimum(store: Store, verified: Verified | None, runner: str) -> Verified | None:
    """Have a device note what the signers of its new release ask for, if they do; the caller holds the lock.

    Raises:
        DeviceError: It cannot; the release is current all the same.
    """
    if verified is None:
        return None
    try:
        return _answer(store, store.attempt(note_script(f"{runner}/{RUNNER}"), _HASHING_S))
    except ToolchainError as fault:
        raise DeviceError(
            f"{store.name} runs the release, but could not store the minimum sequence that its signers require",
            details=f"{fault.message}\n{fault.details}",
            hint="check the device's disk space; the next deployment or roll-back stores it first",
        ) from fault


def _answer(store: Store, output: str) -> Verified | None:
    lines = output.splitlines()
    last = lines[-1] if lines else ""
    if last == "open":
        return None
    text = "\n".join(lines[:-1])
    if last == "code 0":
        return _read(store, lines)
    if last == f"code {UNTRUSTED}":
        raise VerificationError(
            f"{store.name} does not accept this release", details=text, hint=f"it keeps its current release; {_REMEDY}"
        )
    if last == f"code {_FLOOR}":
        raise InputError(
            f"{store.name} refuses this floor", details=text, hint="run `toolchain status` to see its floor"
        )
    raise DeviceError(
        f"{store.name} cannot check the release",
        details=text or "it has no program for this check",
        hint="deploy with this version of the toolchain: `toolchain deploy`",
    )


def _read(store: Store, lines: list[str]) -> Verified:
    try:
        return _READER.validate_json(next((line for line in lines if line.startswith("{")), ""))
    except ValidationError as fault:
        raise VerificationError(
            f"{store.name} sent an invalid answer", details=str(fault), hint="deploy again"
        ) from fault
