"""The releases of the conformance tests, and which of them a client must accept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import bundles, signers
from tests.support.signers import Pair
from toolchain import bundle, files
from toolchain.bundle import Bundle

SIGNED = "release.signed"
_SPARSE = 4 << 30


@dataclass(frozen=True)
class Setting:
    """What every case begins with: a release of sequence 5 that alice has signed, and a device that trusts her.

    Attributes:
        alice, bob: Signers.
        base: The bundle, unsigned.
        folder: For what the case makes.
        release: The release as it lies on a device.
        trust: What the device trusts.
    """

    alice: Pair
    bob: Pair
    base: Bundle
    folder: Path
    release: Path = field(init=False)
    trust: Path = field(init=False)

    def __post_init__(self) -> None:
        release = signers.signed(self.base, self.folder / "signed", [self.alice], sequence=5)
        object.__setattr__(self, "release", signers.released(release, self.folder))
        object.__setattr__(self, "trust", signers.trusting(self.folder / "trust", [self.alice]))

    @property
    def statement(self) -> bytes:
        return (self.release / SIGNED).read_bytes().partition(b"-----")[0]

    def sign(self, *signatures: tuple[Pair, bytes], statement: bytes = b"") -> None:
        """Replace the statement and its signatures; each part is a signer and what that has signed."""
        text = statement or self.statement
        rows = [signers.signature(signer, message or text) for signer, message in signatures]
        (self.release / SIGNED).write_bytes(text + b"".join(rows))

    def state(self, **changes: object) -> None:
        """Sign another statement."""
        document = {**json.loads(self.statement), **changes}
        text = json.dumps({key: value for key, value in document.items() if value is not None}).encode()
        self.sign((self.alice, text), statement=text)

    def trusts(self, *pairs: Pair, **more: str) -> None:
        signers.trusting(self.trust, pairs, **more)

    def change(self, name: str) -> None:
        path = self.release / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


@dataclass(frozen=True)
class Case:
    """One release.

    Attributes:
        name: What is special about it.
        make: Makes it so.
        accepted: Whether a client must accept it, or must refuse it.
        own: Whether only a client of the whole format has to know: thresholds, boards, floors and statements' forms are
            no business of a check of signatures and digests.
    """

    name: str
    make: Callable[[Setting], object]
    accepted: bool = False
    own: bool = False


def _two_of_two(it: Setting) -> None:
    it.sign((it.alice, b""), (it.bob, b""))
    it.trusts(it.alice, it.bob, threshold="2\n")


def _one_twice(it: Setting) -> None:
    it.sign((it.alice, b""), (it.alice, b""))
    it.trusts(it.alice, it.bob, threshold="2\n")


def _other_hash(it: Setting) -> None:
    text = it.statement
    (it.release / SIGNED).write_bytes(text + signers.by_hand(text, it.alice, it.folder, hashed="sha256"))


def _other_namespace(it: Setting) -> None:
    text = it.statement
    (it.release / SIGNED).write_bytes(text + signers.by_hand(text, it.alice, it.folder, namespace="file"))


def _floor(number: int) -> Callable[[Setting], None]:
    def make(it: Setting) -> None:
        folder = it.trust / "floors"
        folder.mkdir()
        (folder / it.base.manifest.name).write_text(f"{number}\n")

    return make


def _duplicate_key(it: Setting) -> None:
    text = it.statement.replace(b'"sequence"', b'"sequence":9,"sequence"')
    it.sign((it.alice, text), statement=text)


def _other_release(it: Setting) -> None:
    other = bundles.reweighted(it.base, it.folder / "other", seed=9)
    release = signers.signed(other, it.folder / "other-signed", [it.alice], sequence=5)
    text = release.statement.read_bytes() if release.statement else b""
    it.sign((it.alice, text), statement=text)


def _sparse(name: str) -> Callable[[Setting], None]:
    """Add 4 GiB of zeros, so that the size is the right one for whoever keeps 32 bits of it."""

    def make(it: Setting) -> None:
        with (it.release / name).open("r+b") as stream:
            stream.truncate(stream.seek(0, 2) + _SPARSE)

    return make


def _other_size(it: Setting) -> None:
    """The signer has signed a wrong size of a file."""
    document = json.loads((it.release / "oci.json").read_bytes())
    document["layers"][0]["size"] += 1
    text = json.dumps(document).encode()
    (it.release / "oci.json").write_bytes(text)
    it.state(bundle=files.sha256_bytes(text))
    object.__setattr__(it, "release", it.release.rename(it.release.parent / files.sha256_bytes(text)))


def _link(it: Setting) -> None:
    path = it.release / bundle.PARAMS
    shutil.move(path, it.folder / "elsewhere")
    path.mkdir()


CASES = (
    Case("a signed release", lambda _it: None, accepted=True),
    Case("two of two signers", _two_of_two, accepted=True),
    Case("another signer beside the trusted one", lambda it: it.sign((it.bob, b""), (it.alice, b"")), accepted=True),
    Case("OpenSSH's other hash, SHA-256", _other_hash, accepted=True),
    Case("a minimum", lambda it: it.state(minimum=4), accepted=True),
    Case("at the floor", _floor(5), accepted=True),
    Case("for the device's board", lambda it: it.trusts(it.alice, board=f"{it.base.manifest.board}\n"), accepted=True),
    Case("an unknown file beside the others", lambda it: (it.release / "notes.txt").write_text("x"), accepted=True),
    Case("no signature file", lambda it: (it.release / SIGNED).unlink()),
    Case("an empty signature file", lambda it: (it.release / SIGNED).write_bytes(b"")),
    Case("a statement without a signature", lambda it: it.sign()),
    Case("a signer who is not trusted", lambda it: it.sign((it.bob, b""))),
    Case("a revoked signer", lambda it: it.trusts(it.alice, revoked=f"{it.alice.line}\n")),
    Case("a signature of another statement", lambda it: it.sign((it.alice, b"{}\n"))),
    Case("a signature for another namespace", _other_namespace),
    Case("a statement about another release", _other_release),
    Case("a changed byte in the statement", lambda it: it.change(SIGNED)),
    Case("one of two signers", lambda it: it.trusts(it.alice, it.bob, threshold="2\n"), own=True),
    Case("one signer twice, of two", _one_twice, own=True),
    Case("below the floor", _floor(6), own=True),
    Case("for another board", lambda it: it.trusts(it.alice, board="other\n"), own=True),
    Case("a statement for another board", lambda it: it.state(board="other"), own=True),
    Case("a statement of another model", lambda it: it.state(model="other"), own=True),
    Case("an unknown key in the statement", lambda it: it.state(expires=1), own=True),
    Case("another version of the statement", lambda it: it.state(schema=2), own=True),
    Case("a key twice in the statement", _duplicate_key, own=True),
    Case("a sequence of 0", lambda it: it.state(sequence=0), own=True),
    Case("a sequence of 2^53", lambda it: it.state(sequence=2**53), own=True),
    Case("a sequence of 2^64 + 5", lambda it: it.state(sequence=2**64 + 5), own=True),
    Case("a minimum above the sequence", lambda it: it.state(minimum=6), own=True),
    *(
        Case(f"a changed byte in {name}", lambda it, name=name: it.change(name))
        for name in ("oci.json", bundle.MANIFEST)
    ),
    *(Case(f"a changed byte in {name}", lambda it, name=name: it.change(name)) for name in bundle.LAYERS),
    Case("no oci.json", lambda it: (it.release / "oci.json").unlink()),
    Case("no manifest", lambda it: (it.release / bundle.MANIFEST).unlink()),
    Case("no library", lambda it: (it.release / bundle.LIBRARY).unlink()),
    Case("a folder in place of a file", _link),
    Case("release.signed with 4 GiB more", _sparse(SIGNED)),
    Case("oci.json with 4 GiB more", _sparse("oci.json")),
    *(Case(f"{name} with 4 GiB more", _sparse(name)) for name in (bundle.MANIFEST, bundle.PARAMS)),
    Case("a file of another size in oci.json", _other_size),
)
