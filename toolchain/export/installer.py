"""The program that applies an update: POSIX sh, made of the very steps of a deploy."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from toolchain.device import application as applications
from toolchain.device import lock, runner, scripts, trust
from toolchain.device.shipment import SPARE_KIB
from toolchain.export.update import Update
from toolchain.native.programs import RUNNER

BLOCK = 512  # contents begin at a multiple of so many bytes of a file, as in any tar archive
# how every installer begins
MARK = b"#!/bin/sh\n{ # An update for a device: see `sh FILE --help`.\n"

_MAIN = (Path(__file__).parent / "install.sh").read_text(encoding="utf-8")
_TOKEN = "@token@"  # noqa: S105 - a place in a command line, and a word that shlex leaves as it is
_SCRATCH = f"run/{_TOKEN}"
_TRIAL_S = 600

# All the rest is hashed before the shell reads on. What is cut off before the brace is a syntax error.
# zsh has rules of its own until it is told to be sh: it would split no words, and install nothing without an error.
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
_DIGITS = 4  # of the number of bytes before what is hashed

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


@dataclass(frozen=True)
class Place:
    """Where one of the contents is: its size in bytes, and how many come before it in the payload."""

    size: int
    offset: int


def text(update: Update, places: Mapping[str, Place], *, in_file: bool) -> bytes:
    """Return an installer that is not sealed yet.

    Args:
        update: The update.
        places: Where its contents are, by digest.
        in_file: Whether they follow the installer, whose size is a multiple of `BLOCK`, or lie beside it in `blobs`.
    """
    size, made = 0, b""
    while size == 0 or len(made) != size:  # it tells places, and so its own size
        size = len(made)
        made = _padded(_text(update, places, size, in_file=in_file))
    return made


def _text(update: Update, places: Mapping[str, Place], size: int, *, in_file: bool) -> bytes:
    content = _IN_FILE if in_file else _IN_FOLDER
    parts = [_values(update, places, size), content, _steps(update), _MAIN, 'main "$@"; exit\n']
    return _preamble(len(_preamble(0)) + 1) + "\n".join(parts).encode()


def _padded(text: bytes) -> bytes:
    return text + b"\n" * (-len(text) % BLOCK)


def seal(path: Path) -> None:
    """Write into an installer the digest of all that follows its first lines, what comes after it included."""
    with path.open("r+b") as stream:
        head = stream.read(len(_preamble(0)))
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(head.index(_UNSEALED.encode()))
        stream.write(digest.encode())


def _preamble(first: int) -> bytes:
    return MARK + _PREAMBLE.substitute(first=f"{first:<{_DIGITS}}", digest=_UNSEALED).encode()


def _values(update: Update, places: Mapping[str, Place], before: int) -> str:
    manifest, board = update.bundle.manifest, update.board
    described = {digest: _described(digest, place, before) for digest, place in places.items()}
    expected = {update.expected[1]} if update.expected else set()
    values: dict[str, object] = {
        "model": printable(manifest.name),
        "board": printable(manifest.board),
        "release": update.bundle.digest,
        "machine": manifest.machine,
        "features": " ".join(manifest.cpu_features),
        "glibc": update.glibc,
        "root": board.root,
        "keep": board.keep,
        "threads": board.threads,
        "tolerance": "",
        "blobs": " ".join(described[digest] for digest in update.shipment.blobs),
        "expected": " ".join(described[digest] for digest in expected),
        "application": printable(update.application.name) if update.application else "",
        "within_s": update.application.seconds if update.application else 0,
        "spare_kib": SPARE_KIB,
        "signed": update.shipment.signed,
        "lease": lock.LEASE_S,
        "limit_s": _TRIAL_S,
    }
    return "\n# What it is.\n" + "\n".join(f"{name}={shlex.quote(str(value))}" for name, value in values.items())


def _described(digest: str, place: Place, before: int) -> str:
    """Tell the KiB of one of the contents, its bytes, and its first byte, from 1: some shells compute in 32 bits."""
    return f"{digest}:{-(-place.size // 1024)}:{place.size}:{before + place.offset + 1}"


def printable(name: str) -> str:
    """Return a name as one line: it may come from a package of anybody's."""
    return "".join(one if one.isprintable() else "?" for one in name)


def _steps(update: Update) -> str:
    """Return the functions that the main part calls: the lock and the changes are the texts that a deploy sends."""
    shipment = update.shipment
    blobs, programs = sorted(shipment.blobs), sorted(shipment.programs)
    documents = sorted(shipment.blobs.keys() - programs)
    installs = [scripts.install(kind, *folder) for kind, folder in sorted(shipment.folders.items())]
    steps = {
        "survey": scripts.FACTS,
        "recover": scripts.RECOVER,
        # Nothing is continued: the contents are at hand, and a killed one's may need the room.
        "sweep": f"{scripts.SWEEP}rm -rf blobs/partial/*",
        "examine": scripts.examine(blobs),
        "accept": scripts.accept(blobs),
        "publish": f"({scripts.publish(programs, 555)})\n({scripts.publish(documents, 444)})",
        "install": "".join(installs),
        "activate": _activated(update),
        "prune": scripts.prune("$keep"),
        "roll_back": _rolled_back(update),
        "run": f'${{limit-}} {_runner(update)} "$@"',
        "peek": lock.PEEK,
        **_trusting(update),
    }
    functions = "\n".join(f"{name}() {{\n{step.strip()}\n}}\n" for name, step in steps.items())
    return f"{lock.SAID}{lock.TAKE}\n{functions}"


def _trusting(update: Update) -> dict[str, str]:
    """Return how a device that takes signed releases only is asked; see device/trust.py."""
    shipment, digest = update.shipment, update.bundle.digest
    program = f"runners/{shipment.folders['runners'][0]}/{RUNNER}"
    return {
        "asks": scripts.ASKS,
        "note_minimum": trust.noting(program),
        "verify": trust.checking(f"releases/{digest}", program, trust.with_blob(shipment.signed)),
        "attach": trust.attaching(digest, shipment.signed) if shipment.signed else ":",
        "verify_previous": scripts.PREVIOUS.format()
        + trust.checking("@previous@", program).replace("@previous@", "generations/$target"),
    }


def _activated(update: Update) -> str:
    run, digest = update.application, update.bundle.digest
    mark = scripts.mark(digest, unchecked=update.expected is None)
    switch = f"{scripts.put_recovery()}{applications.trial_of(digest, run)}" if run else scripts.activate(digest)
    return f"{mark}{switch}"


def _rolled_back(update: Update) -> str:
    run = update.application
    return f"{scripts.put_recovery()}{applications.trial_of_previous(run)}" if run else scripts.roll_back()


def _runner(update: Update) -> str:
    places = {kind: f"{kind}/{digest}" for kind, (digest, _files) in update.shipment.folders.items()}
    argv = runner.command(places, places["releases"], _SCRATCH, runner.SMOKE)
    return shlex.join(argv).replace(_TOKEN, "$token")
