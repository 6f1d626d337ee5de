"""An update: its contents, and the files that it is written as, either one that extracts itself, or a folder.

The contents are the blobs of a deploy, the expected outputs, and what the device must have for them. The program that
applies an update is POSIX sh, made of the same steps as a deploy.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from toolchain import files, outputs, temporary
from toolchain.board import Board
from toolchain.bundle import Bundle, archive, save_expected
from toolchain.device import application as applications
from toolchain.device import fit, lock, runner, scripts, trust, verification
from toolchain.device.probe import script as probe_script
from toolchain.device.runner import Plan
from toolchain.device.shipment import SPARE_KIB, Shipment
from toolchain.errors import InputError
from toolchain.native import elf
from toolchain.native.programs import RUNNER, Program

if TYPE_CHECKING:
    from toolchain.devices import Application

_EXPECTED = "expected.safetensors"

BLOCK = 512  # contents begin at a multiple of so many bytes of a file, as in any tar archive
# how every installer begins
MARK = b"#!/bin/sh\n{ # An update for a device: see `sh FILE --help`.\n"
_MAIN = (Path(__file__).parent / "install.sh").read_text(encoding="utf-8")
_TOKEN = "@token@"  # noqa: S105 - a placeholder in a command line, which shlex leaves as it is
_SCRATCH = f"run/{_TOKEN}"
_TRIAL_S = 600
# All the rest is hashed before the shell reads on. What is cut off before the brace is a syntax error.
# Without `emulate sh`, zsh would not split words, and would install nothing without an error.
_PREAMBLE = Template("""\
if [ -n "$${ZSH_VERSION-}" ]; then emulate sh; fi
case $$0 in /*) self=$$0 ;; *) self=$$PWD/$$0 ;; esac
if ! command -v sha256sum >/dev/null; then
  echo "error: this device lacks sha256sum" >&2
  exit 4
fi
if [ -f "$$self" ] && [ "$$(tail -c +$first "$$self" | sha256sum | cut -c 1-64)" = '$digest' ]; then
  :
else
  echo "error: $$self is damaged: its bytes differ from those that were exported" >&2
  echo "hint: copy it again, and compare its sha256sum with the one that the export printed" >&2
  case " $$* " in *" --json "*) echo '{"error": {"message": "the update is damaged", "exit_code": 5}}' ;; esac
  exit 5
fi
}
""")
_UNSEALED = "0" * 64
_DIGITS = 4  # of the number of bytes before the hashed ones
_IN_FILE = """
check_content() { :; }
lend() { lend_copy; }
content() { # DIGEST:KIB:SIZE:PLACE
  size=${1#*:*:}
  tail -c "+${size#*:}" "$self" 2>/dev/null | head -c "${size%%:*}"
}
"""
_IN_FOLDER = """
lend() { fail 2 "$user cannot read ${self%/*}" "" "copy the folder to where $user can read it"; }
content() { cat "${self%/*}/blobs/${1%%:*}"; } # DIGEST:KIB:SIZE:PLACE
check_content() {
  for blob in $blobs $expected; do
    [ "$(sha256sum 2>/dev/null <"${self%/*}/blobs/${blob%%:*}" | cut -c 1-64)" = "${blob%%:*}" ] ||
      fail 5 "${self%/*} is damaged: blobs/${blob%%:*} differs from the exported file" "" "copy the folder again"
  done
}
"""
UPDATE = "update.run"
INSTALLER = "install.sh"
BLOBS = "blobs"
_FILE, _FOLDER = "an update", "the folder of an update"
_EXECUTABLE = 0o755


@dataclass(frozen=True)
class Update:
    bundle: Bundle
    board: Board
    program: Program  # the runner
    shipment: Shipment  # the same as that of a deploy
    expected: tuple[Path, str] | None  # path and digest of the expected outputs; None without a reference
    application: Application | None = None  # is restarted on the device, and must be well; None to only switch
    slot: str = ""  # the slot of the device's store; empty for the store's own releases
    steps: int = 0  # of the inputs; 0 for a model without a state

    @property
    def plan(self) -> Plan:
        """How its release is tried."""
        return replace(runner.SMOKE, samples=self.steps, sequence=self.steps > 0)

    @property
    def glibc(self) -> str:
        """The lowest glibc version that both the runner and the library load on; empty if they need none."""
        needed = [version for version in (self.program.glibc, self.bundle.manifest.glibc) if version]
        return max(needed, key=elf.version_key, default="")

    @property
    def contents(self) -> Mapping[str, Path]:
        """Path of every file of the update, by digest, in the order of the digests."""
        more = {self.expected[1]: self.expected[0]} if self.expected else {}
        return dict(sorted({**self.shipment.blobs, **more}.items()))


@contextlib.contextmanager
def prepare(
    bundle: Bundle,
    board: Board,
    program: Program,
    application: Application | None = None,
    *,
    slot: str = "",
    unchecked: bool = False,
) -> Iterator[Update]:
    """Gather an update; files that are not in the bundle are in a temporary folder for the time of the block.

    Raises:
        VerificationError: The reference is missing (unless `unchecked`) or does not fit the model, or the runner has
            another version of TVM than the bundle.
        InputError: The bundle has variants: an update compares one set of shapes on the device.
    """
    if bundle.manifest.variants:
        raise InputError(
            f"{bundle.manifest.name} has {len(bundle.manifest.variants)} variants, and an update compares one",
            details="\n".join(map(str, bundle.manifest.variants)),
            hint="use `toolchain deploy`, or export a package for each set of shapes, with --slot",
        )
    fit.check_versions(bundle.manifest, program.versions)
    samples = verification.samples_of(bundle, unchecked=unchecked)
    with temporary.folder() as folder:
        work = Path(folder)
        shipment = Shipment.of_run(program, samples.inputs, work).with_release(bundle, work)
        expected = None
        if samples.expected is not None:
            save_expected(work / _EXPECTED, samples.expected, samples.tolerance, samples.rankings)
            expected = (work / _EXPECTED, files.sha256_file(work / _EXPECTED))
        steps = bundle.manifest.steps(samples.inputs)
        yield Update(bundle, board, program, shipment, expected, application, slot, steps)


@dataclass(frozen=True)
class Extent:
    """Where a file of the update is: its size in bytes, and its offset in the payload."""

    size: int
    offset: int


def installer_text(update: Update, extents: Mapping[str, Extent], *, in_file: bool) -> bytes:
    """Return an installer that is not sealed yet.

    Args:
        update: The update.
        extents: Where its contents are, by digest.
        in_file: Whether they follow the installer, whose size is a multiple of `BLOCK`, or lie beside it in `blobs`.
    """
    content = _IN_FILE if in_file else _IN_FOLDER
    size, script = 0, b""
    while size == 0 or len(script) != size:  # it contains offsets, and so its own size
        size = len(script)
        sections = [_values(update, extents, size), content, _steps(update), _MAIN, 'main "$@"; exit\n']
        script = _preamble(len(_preamble(0)) + 1) + "\n".join(sections).encode()
        script += b"\n" * (-len(script) % BLOCK)
    return script


def seal(path: Path) -> None:
    """Write the digest of everything after the first lines into an installer."""
    with path.open("r+b") as stream:
        head = stream.read(len(_preamble(0)))
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(head.index(_UNSEALED.encode()))
        stream.write(digest.encode())


def _preamble(first: int) -> bytes:
    return MARK + _PREAMBLE.substitute(first=f"{first:<{_DIGITS}}", digest=_UNSEALED).encode()


def _values(update: Update, extents: Mapping[str, Extent], before: int) -> str:
    manifest, board = update.bundle.manifest, update.board
    # The KiB of a file, its bytes, and its first byte, from 1: some shells compute in 32 bits.
    blobs = {
        digest: f"{digest}:{-(-extent.size // 1024)}:{extent.size}:{before + extent.offset + 1}"
        for digest, extent in extents.items()
    }
    expected = {update.expected[1]} if update.expected else set()
    values: dict[str, object] = {
        "model": printable(manifest.name),
        "board": printable(manifest.board),
        "release": update.bundle.digest,
        "machine": manifest.machine,
        "features": " ".join(manifest.cpu_features),
        "glibc": update.glibc,
        "musl": "yes" if update.program.musl else "",
        "root": board.root,
        "slot": update.slot,
        "keep": board.keep,
        "threads": board.threads,
        "tolerance": "",
        "blobs": " ".join(blobs[digest] for digest in update.shipment.blobs),
        "expected": " ".join(blobs[digest] for digest in expected),
        "application": printable(update.application.name) if update.application else "",
        "within_s": update.application.seconds if update.application else 0,
        "spare_kib": SPARE_KIB,
        "signed": update.shipment.signed,
        "lease": lock.LEASE_S,
        "limit_s": _TRIAL_S,
    }
    return "\n# What it is.\n" + "\n".join(f"{name}={shlex.quote(str(value))}" for name, value in values.items())


def printable(name: str) -> str:
    """Return an untrusted name as one line."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _steps(update: Update) -> str:
    """Return the functions that the main part calls: the lock, and the same scripts that a deploy sends."""
    shipment, digest, application = update.shipment, update.bundle.digest, update.application
    blobs, programs = sorted(shipment.blobs), sorted(shipment.programs)
    documents = sorted(shipment.blobs.keys() - programs)
    installs = [scripts.install(kind, *folder) for kind, folder in sorted(shipment.folders.items())]
    mark = scripts.mark(digest, unchecked=update.expected is None)
    if application:
        activate = f"{scripts.put_recovery()}{applications.trial_script(digest, application)}"
        roll_back = f"{scripts.put_recovery()}{applications.rollback_trial_script(application)}"
    else:
        activate, roll_back = scripts.activate(digest), scripts.roll_back()
    folders = {kind: f"{kind}/{name}" for kind, (name, _files) in shipment.folders.items()}
    run = shlex.join(runner.command(folders, folders["releases"], _SCRATCH, update.plan)).replace(_TOKEN, "$token")
    steps = {
        "survey": probe_script.FACTS,
        "recover": scripts.RECOVER,
        "make_slot": scripts.make_slot(update.slot) if update.slot else ":",
        # Nothing is resumed: the contents are at hand, and a killed update's files may need the space.
        "sweep": f"{scripts.SWEEP}rm -rf blobs/partial/*",
        "examine": scripts.examine(blobs),
        "accept": scripts.accept(blobs),
        "publish": f"({scripts.publish(programs, 555)})\n({scripts.publish(documents, 444)})",
        "install": "".join(installs),
        "activate": f"{mark}{activate}",
        "prune": scripts.prune("$keep"),
        "roll_back": roll_back,
        "run": f'${{limit-}} {run} "$@"',
        "peek": lock.PEEK,
        **_trust_steps(update),
    }
    functions = "\n".join(f"{name}() {{\n{step.strip()}\n}}\n" for name, step in steps.items())
    return f"{lock.SAID}{lock.TAKE}\n{functions}"


def _trust_steps(update: Update) -> dict[str, str]:
    """Return the steps for a device that accepts signed releases only; see device/trust.py."""
    shipment, digest = update.shipment, update.bundle.digest
    program = f"runners/{shipment.folders['runners'][0]}/{RUNNER}"
    return {
        "asks": scripts.ASKS,
        "note_minimum": trust.note_script(program),
        "verify": trust.check_script(f"releases/{digest}", program, trust.blob_argument(shipment.signed)),
        "attach": trust.attach_script(digest, shipment.signed) if shipment.signed else ":",
        "verify_previous": scripts.PREVIOUS.format()
        + trust.check_script("@previous@", program).replace("@previous@", "generations/$target"),
    }


@dataclass(frozen=True)
class WrittenUpdate:
    """An update that was written: the file to run on the device, its SHA-256, and the bytes of the whole update."""

    path: Path
    sha256: str
    size: int

    @classmethod
    def of(cls, path: Path, size: int) -> WrittenUpdate:
        return cls(path, files.sha256_file(path), size)


def check_target(target: Path, *, folder: bool) -> None:
    """See `export.check_target`."""
    if folder:
        outputs.check_folder(target, _FOLDER, _foreign_folder)
    else:
        outputs.check_file(target, _FILE, _foreign_file)


def write(update: Update, target: Path, *, folder: bool = False) -> WrittenUpdate:
    """See `export.write`."""
    check_target(target, folder=folder)
    return _write_folder(update, target) if folder else _write_file(update, target)


def _write_file(update: Update, target: Path) -> WrittenUpdate:
    extents, offset = {}, BLOCK  # each file comes after one block that describes it
    for digest, path in update.contents.items():
        size = path.stat().st_size
        extents[digest] = Extent(size, offset)
        offset += size + -size % BLOCK + BLOCK
    with files.atomic_path(target) as temporary:
        with temporary.open("wb") as stream:
            stream.write(installer_text(update, extents, in_file=True))
            # A plain archive, so that people can inspect an update with `tail` and `tar`.
            archive.append_tar(stream, {f"{BLOBS}/{digest}": path for digest, path in update.contents.items()})
        seal(temporary)
    target.chmod(target.stat().st_mode | 0o111)
    return WrittenUpdate.of(target, target.stat().st_size)


def _write_folder(update: Update, target: Path) -> WrittenUpdate:
    extents = {digest: Extent(path.stat().st_size, 0) for digest, path in update.contents.items()}
    with outputs.replacing(target, _FOLDER, _foreign_folder) as staging:
        script = staging / INSTALLER
        script.write_bytes(installer_text(update, extents, in_file=False))
        seal(script)
        script.chmod(_EXECUTABLE)
        (staging / BLOBS).mkdir()
        for digest, path in update.contents.items():
            shutil.copyfile(path, staging / BLOBS / digest)
    script = target / INSTALLER
    size = script.stat().st_size + sum(extent.size for extent in extents.values())
    return WrittenUpdate.of(script, size)


def _foreign_file(path: Path) -> str:
    with path.open("rb") as stream:
        return "" if stream.read(len(MARK)) == MARK else "it is not an update of this toolchain"


def _foreign_folder(folder: Path) -> str:
    strangers = sorted({item.name for item in folder.iterdir()} - {INSTALLER, BLOBS})
    if strangers:
        return f"it contains {', '.join(strangers[:5])}"
    script = folder / INSTALLER
    return _foreign_file(script) if script.is_file() else f"it does not contain {INSTALLER}"
