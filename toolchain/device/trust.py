"""Whether a device accepts a release: if it has a file of trusted keys, our runner checks the signatures there.

This check comes before anything is changed, so that the device keeps its release if it fails. The decision is made
again when the runner loads the release. See docs/security.md.
"""

from __future__ import annotations

import contextlib
import shlex
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from toolchain.bundle import Bundle
from toolchain.device.probe.facts import DeviceFacts
from toolchain.device.runner import UNTRUSTED
from toolchain.device.scripts import ASKS, PREVIOUS, SYNC, TRUST
from toolchain.device.shipment import SIGNED
from toolchain.device.store import Store
from toolchain.errors import DeviceError, InputError, ToolchainError, VerificationError
from toolchain.native.programs import RUNNER

_HASHING_S = 300
_FLOOR = 8  # exit code of the runner if the release itself is below a floor: kExitFloor
_REMEDY = "sign the package with `toolchain trust sign`, and check the device's trusted keys (docs/security.md)"

# Prints one line of JSON about the release, or why it is refused, and `code N`. By default the newest runner on the
# device checks.
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
    """A device's check of a release that it accepts.

    Attributes:
        bundle: The bundle's digest.
        model: The model's name in the signed statement.
        board: The board type in the signed statement.
        sequence: Number of the release among those of the model.
        minimum: The lowest sequence that the device accepts after this release; 0 for no change.
        floor: The lowest sequence of this model that the device accepts now.
        signers: The signers, by their names on the device.
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
    """A device's view of its current release.

    Attributes:
        takes: The releases that it accepts: `signed` or `any`.
        signed: Whether the release has signatures, valid or not.
        verified: The check of the release; None if the device accepts any release, or refuses this one.
        refused: Why it does not accept this release any more.
        unknown: Why it could not check.
    """

    takes: str
    signed: bool
    verified: Verified | None = None
    refused: str = ""
    unknown: str = ""


_READER = TypeAdapter(Verified)


def check_signed(name: str, facts: DeviceFacts, bundle: Bundle) -> None:
    """Check, before anything is sent, that a bundle has signatures if the device requires them.

    Raises:
        VerificationError: It has none.
    """
    if facts.signed_only and (bundle.statement is None or bundle.signatures is None):
        raise VerificationError(
            f"{name} accepts only signed releases, but {bundle.manifest.name} {bundle.digest[:16]} is not signed",
            hint=_REMEDY,
        )


def check_script(release: str, runner: str = "", more: str = "") -> str:
    """Return the script that checks a release on its device; its last line is `open` or `code N`.

    Args:
        release: Folder of the release in the store.
        runner: The runner that checks; the newest one of the store by default.
        more: More arguments of the runner.
    """
    return _CHECK.format(runner=shlex.quote(runner), release=shlex.quote(release), more=more)


def note_script(runner: str = "") -> str:
    """Return the script that stores the minimum sequence of the signers of the current release on the device."""
    return f"if [ -d current/ ]; then\n{check_script('current/', runner, '--floor 0')}\nfi"


def attach_script(digest: str, signed: str) -> str:
    """Return the script that attaches the statement and the signatures to a release.

    `signed` is the digest of the blob with both.
    """
    return _ATTACH.format(digest=digest, signed=signed, name=SIGNED, sync=SYNC)


def blob_argument(signed: str) -> str:
    """Return the argument for the runner to read the signatures from a blob; empty without a blob."""
    return f"--signed blobs/sha256/{signed}" if signed else ""


def take(store: Store, digest: str, runner: str, signed: str) -> Verified | None:
    """Check an installed release with its new signatures on the device, and only then attach them.

    The caller holds the lock. A refused release keeps its old signatures: it may be the current one.

    Args:
        store: The device's store.
        digest: The bundle's digest.
        runner: Folder of the runner that checks.
        signed: Digest of the blob with the statement and the signatures; empty without any.

    Returns:
        The check; None if the device accepts any release.

    Raises:
        VerificationError: The device does not accept this release.
        DeviceError: It has no runner to check it.
    """
    if not signed:  # the device does not require signatures: see `check_signed`
        return None
    verified = verify(store, f"releases/{digest}", f"{runner}/{RUNNER}", blob_argument(signed))
    store.attempt(attach_script(digest, signed), 0)
    return verified


def verify(store: Store, release: str, runner: str = "", more: str = "") -> Verified | None:
    """Check the signatures and all files of a release on the device; the caller holds the lock.

    Args:
        store: The device's store.
        release: Folder of the release in the store.
        runner: The runner that checks; the newest one of the store by default.
        more: More arguments of the runner.

    Returns:
        The check; None if the device accepts any release.

    Raises:
        VerificationError: The device does not accept this release.
        DeviceError: It has no runner to check it.
    """
    # A power cut after an activation may have kept the minimum of the current release from being stored.
    with contextlib.suppress(VerificationError):  # the current release may not be accepted any more
        _answer(store, store.attempt(note_script(runner), _HASHING_S) or "open")
    return _answer(store, store.attempt(check_script(release, runner, more), _HASHING_S))


def verify_previous(store: Store) -> Verified | None:
    """Check the previous release on the device, as `verify`; also return None if there is none."""
    if not store.facts().signed_only:
        return None
    target = store.attempt(f"{PREVIOUS.format()}\necho generations/$target", 0)
    return None if "none" in target.split() else verify(store, target.strip())


def state(store: Store) -> State:
    """Return a device's view of its current release, without changing anything."""
    facts = store.look(f"{_LOOK}true").split()
    if "asks" not in facts:
        return State("any", signed="signed" in facts)
    try:
        verified = _answer(store, store.look(f'cd "$ROOT"\n{check_script("current/")}'))
    except VerificationError as fault:
        return State("signed", signed="signed" in facts, refused=fault.details)
    except DeviceError as fault:  # such as an older runner: the rest of the status is still useful
        return State("signed", signed="signed" in facts, unknown=f"{fault.message}: {fault.details}")
    return State("signed", signed=True, verified=verified)


def raise_floor(store: Store, floor: int) -> Verified:
    """Set the lowest sequence of the current model that a device accepts; the caller holds the lock.

    Raises:
        InputError: The current release itself is below it, or the device accepts any release.
        VerificationError: The device does not accept its current release.
    """
    verified = _answer(store, store.attempt(check_script("current/", more=f"--floor {floor:d}"), _HASHING_S))
    if verified is None:
        raise InputError(
            f"{store.name} does not check signatures, so a floor has no effect",
            hint=f"create {TRUST}/trusted on it first (docs/security.md)",
        )
    return verified


def note_minimum(store: Store, verified: Verified | None, runner: str) -> Verified | None:
    """Store the minimum sequence of the signers of a new release on the device; the caller holds the lock.

    Raises:
        DeviceError: That failed; the release is current nevertheless.
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
        try:
            return _READER.validate_json(next((line for line in lines if line.startswith("{")), ""))
        except ValidationError as fault:
            raise VerificationError(
                f"{store.name} sent an invalid answer", details=str(fault), hint="deploy again"
            ) from fault
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
