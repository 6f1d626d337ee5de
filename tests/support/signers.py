"""Keys of ssh-keygen, what a device trusts, and releases as they lie on a device."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolchain import bundle as bundles
from toolchain.bundle import Bundle
from toolchain.device.shipment import SIGNED
from toolchain.signing import keys, sshsig
from toolchain.signing.keys import sign
from toolchain.signing.statement import Order


@dataclass(frozen=True)
class Pair:
    """A key of ssh-keygen: its name, and the file of its private half."""

    name: str
    path: Path

    @property
    def public(self) -> str:
        """The type and the key in base64."""
        return " ".join(self.path.with_suffix(".pub").read_text().split()[:2])

    @property
    def key(self) -> keys.Key:
        return keys.load(self.path, str)

    @property
    def line(self) -> str:
        """As a line of allowed_signers."""
        return f'{self.name} namespaces="edge-release" {self.public}'


def pair(folder: Path, name: str, kind: str = "ed25519") -> Pair:
    """Make a key."""
    path = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", name, "-f", path], check=True)
    return Pair(name, path)


def trusting(folder: Path, signers: Iterable[Pair], **more: str) -> Path:
    """Write what a device trusts: `trusted`, and other files of that folder by name."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trusted").write_text("".join(f"{signer.line}\n" for signer in signers))
    for name, text in more.items():
        (folder / name).write_text(text)
    for path in folder.iterdir():
        path.chmod(0o644)
    return folder


def copied(bundle: Bundle, folder: Path) -> Bundle:
    """Copy a bundle."""
    shutil.copytree(bundle.folder, folder)
    return bundles.load(folder)


def signed(
    bundle: Bundle, folder: Path, signers: Iterable[Pair], sequence: int = 1, minimum: int | None = None
) -> Bundle:
    """Copy a bundle and sign it."""
    release = copied(bundle, folder)
    for signer in signers:
        sign(release, signer.key, Order(sequence, minimum))
    return bundles.load(folder)


def state(bundle: Bundle, statement: bytes, signatures: bytes) -> Bundle:
    """Give a bundle any statement and any signatures."""
    (bundle.folder / bundles.STATEMENT).write_bytes(statement)
    (bundle.folder / bundles.SIGNATURES).write_bytes(signatures)
    return bundles.load(bundle.folder)


def by_hand(message: bytes, pair: Pair, folder: Path, namespace: str = "edge-release", hashed: str = "sha512") -> bytes:
    """Sign with ssh-keygen."""
    path = folder / "message"
    path.write_bytes(message)
    path.with_name("message.sig").unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", pair.path, "-n", namespace, "-O", f"hashalg={hashed}", path]
    subprocess.run(command, check=True, capture_output=True)
    return path.with_name("message.sig").read_bytes()


def holds_by_hand(message: bytes, signature: Path, pair: Pair, allowed: Path) -> bool:
    """Whether ssh-keygen takes a signature."""
    command = ["ssh-keygen", "-Y", "verify", "-f", allowed, "-I", pair.name, "-n", "edge-release", "-s", signature]
    return subprocess.run(command, input=message, check=False, capture_output=True).returncode == 0


def signature(pair: Pair, message: bytes) -> bytes:
    """Sign any statement."""
    built = sshsig.Signature(pair.key.public, sshsig.HASH, pair.key.sign(sshsig.to_sign(message)))
    return sshsig.to_armour(built)


def released(bundle: Bundle, root: Path, contents: Mapping[str, bytes] | None = None) -> Path:
    """Put a bundle where a store has a release, with other contents of some files."""
    folder = root / "releases" / bundle.digest
    folder.mkdir(parents=True)
    for path in bundle.folder.iterdir():
        if path.name in {bundles.MANIFEST, *bundles.LAYERS}:
            shutil.copyfile(path, folder / path.name)
    if bundle.statement and bundle.signatures:
        (folder / SIGNED).write_bytes(bundle.statement.read_bytes() + bundle.signatures.read_bytes())
    (folder / "oci.json").write_bytes(bundles.oci_manifest(bundle.manifest))
    for name, data in (contents or {}).items():
        (folder / name).write_bytes(data)
    return folder
