"""OpenSSH's ssh-keygen as a client, with Python's standard library around it and nothing of this project.

It shows what another implementation has to do: check the signature of the statement, the digest of oci.json in the
statement, and the size and the digest of each file in oci.json. It counts no threshold, and knows no board and no
floor.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.conformance import arguments

_ARMOUR = b"-----BEGIN SSH SIGNATURE-----"
_LARGEST = 1 << 20
_TITLE = "org.opencontainers.image.title"


class RefusedError(Exception):
    """The release is not accepted."""


def main(argv: Sequence[str]) -> int:
    options = arguments.parse(argv)
    try:
        covered = _verified(options.release, options.trust)
    except (RefusedError, OSError, KeyError, TypeError, ValueError) as fault:
        sys.stderr.write(f"refused: {fault!r}\n")
        return 1
    if options.command == "list":
        arguments.show(covered)
    if options.command == "install":
        with arguments.staging(options.target) as folder:
            for name in (*covered, "oci.json", "release.signed"):
                shutil.copyfile(options.release / name, folder / name)
    return 0


def _verified(release: Path, trust: Path) -> dict[str, str]:
    statement, _, rest = _document(release / "release.signed").partition(_ARMOUR)
    signatures = [_ARMOUR + block for block in rest.split(_ARMOUR)]
    if not any(_holds(statement, signature, trust) for signature in signatures):
        raise RefusedError("no trusted signature")
    description = _document(release / "oci.json")
    if hashlib.sha256(description).hexdigest() != json.loads(statement)["bundle"].removeprefix("sha256:"):
        raise RefusedError("the statement is about another release")
    layers = json.loads(description)["layers"]
    covered = {layer["annotations"][_TITLE]: layer["digest"].removeprefix("sha256:") for layer in layers}
    sizes = {layer["annotations"][_TITLE]: layer["size"] for layer in layers}
    for name, digest in covered.items():
        if (release / name).stat().st_size != sizes[name]:
            raise RefusedError(f"{name} has another size")
        with (release / name).open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                raise RefusedError(f"{name} is another file")
    return covered


def _document(path: Path) -> bytes:
    if path.stat().st_size > _LARGEST:
        raise RefusedError(f"{path.name} is too large")
    return path.read_bytes()


def _holds(statement: bytes, signature: bytes, trust: Path) -> bool:
    with tempfile.NamedTemporaryFile() as file:
        file.write(signature)
        file.flush()
        trusted, revoked = trust / "trusted", trust / "revoked"
        search = ["ssh-keygen", "-Y", "find-principals", "-f", trusted, "-s", file.name]
        names = subprocess.run(search, capture_output=True, text=True, check=False).stdout.split()
        if not names:
            return False
        command = ["ssh-keygen", "-Y", "verify", "-f", trusted, "-I", names[0], "-n", "edge-release", "-s", file.name]
        command += ["-r", revoked] if revoked.exists() else []
        return subprocess.run(command, input=statement, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
