"""Releases that no device may take, in the manner of TUF's attacks, each deployed by a real deploy: a program.

It writes whom the device trusts to /etc, so it is to be run as `tests.support.etc` says. It prints a document: for each
attack how the deploy ended, and whether the device runs what it ran before.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support import bundles as made_bundles
from tests.support import deploys, signers
from tests.support.signers import Pair
from toolchain import board
from toolchain import bundle as bundles
from toolchain.bundle import Bundle
from toolchain.device import scripts, trust
from toolchain.device.store import Store
from toolchain.errors import ToolchainError
from toolchain.native import programs
from toolchain.shell import LocalShell
from toolchain.signing import sshsig

SEQUENCE, FLOOR = 5, 3
ORDER = 2**252 + 27742317777372353535851937790883648493
ETC = Path(scripts.TRUST)


@dataclass(frozen=True)
class Field:
    """What attackers have: the release that the device runs, a later one as it was signed, and keys."""

    work: Path
    running: Bundle
    later: Bundle
    alice: Pair
    bob: Pair
    carol: Pair
    mallory: Pair

    def copy(self) -> Bundle:
        return signers.copied(self.later, self.work / "attack")

    def said(self, **changes: object) -> bytes:
        """What would be signed of the later release, with other values, which no statement of ours can have."""
        document = json.loads((self.later.folder / bundles.STATEMENT).read_bytes()) | changes
        return json.dumps(document).encode()

    def stated(self, message: bytes, *who: Pair) -> Bundle:
        return signers.state(self.copy(), message, b"".join(signers.signature(signer, message) for signer in who))

    def signature(self) -> bytes:
        return (self.later.folder / bundles.SIGNATURES).read_bytes()

    def statement(self) -> bytes:
        return (self.later.folder / bundles.STATEMENT).read_bytes()


Attack = Callable[[Field], Bundle]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__.replace("_", " ")] = function
    return function


def tampered(field: Field, contents: dict[str, bytes], **changes: object) -> Bundle:
    """A bundle that is whole in itself, with the statement and the signatures of the one that it was."""
    release = made_bundles.variant(field.later, field.work / "attack", contents, **changes)
    return signers.state(release, field.statement(), field.signature())


def flipped(data: bytes, position: int = -1) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


@attack
def other_params(field):
    return tampered(field, {bundles.PARAMS: flipped((field.later.folder / bundles.PARAMS).read_bytes())})


@attack
def another_library(field):
    return tampered(field, {bundles.LIBRARY: (field.later.folder / bundles.LIBRARY).read_bytes() + b"\0"})


@attack
def another_graph(field):
    return tampered(field, {bundles.GRAPH_TEXT: b"nothing\n"})


@attack
def another_name_in_the_manifest(field):
    return tampered(field, {}, name="other")


@attack
def another_command_in_the_manifest(field):
    return tampered(field, {}, command="rm -rf /")


@attack
def no_signature(field):
    release = field.copy()
    release.statement.unlink()
    release.signatures.unlink()
    return bundles.load(release.folder)


@attack
def a_statement_without_a_signature(field):
    release = field.copy()
    release.signatures.unlink()
    return bundles.load(release.folder)


@attack
def an_empty_signature(field):
    return signers.state(field.copy(), field.statement(), b"")


@attack
def the_signature_of_a_stranger(field):
    return field.stated(field.statement(), field.mallory)


@attack
def the_signature_of_a_revoked_key(field):
    return field.stated(field.statement(), field.bob)


@attack
def a_cut_signature(field):
    return signers.state(field.copy(), field.statement(), field.signature()[:-60])


@attack
def a_bit_of_the_signature(field):
    (signature_read,) = sshsig.read(field.signature(), "it")
    wrong = dataclasses.replace(signature_read, value=flipped(signature_read.value))
    return signers.state(field.copy(), field.statement(), sshsig.to_armour(wrong))


@attack
def another_form_of_the_same_signature(field):
    (signature_read,) = sshsig.read(field.signature(), "it")
    scalar = int.from_bytes(signature_read.value[32:], "little") + ORDER
    other = dataclasses.replace(signature_read, value=signature_read.value[:32] + scalar.to_bytes(32, "little"))
    return signers.state(field.copy(), field.statement(), sshsig.to_armour(other))


@attack
def a_raised_sequence(field):
    return signers.state(field.copy(), field.said(sequence=99), field.signature())


@attack
def the_statement_of_another_release(field):
    statement, signature = (
        (field.running.folder / name).read_bytes() for name in (bundles.STATEMENT, bundles.SIGNATURES)
    )
    return signers.state(field.copy(), statement, signature)


@attack
def the_signature_of_another_statement(field):
    return signers.state(field.copy(), field.statement(), (field.running.folder / bundles.SIGNATURES).read_bytes())


@attack
def a_signature_for_something_else(field):
    message = field.statement()
    return signers.state(field.copy(), message, signers.by_hand(message, field.alice, field.work, namespace="git"))


@attack
def a_signature_of_the_bare_statement(field):
    message = field.statement()
    bare = sshsig.Signature(field.alice.key.public, sshsig.HASH, field.alice.key.sign(message))
    return signers.state(field.copy(), message, sshsig.to_armour(bare))


@attack
def the_statement_of_another_board(field):
    return field.stated(field.said(board="rpi4"), field.alice)


@attack
def the_statement_of_another_model(field):
    return field.stated(field.said(model="other"), field.alice)


@attack
def roll_back_below_the_floor(field):
    return field.stated(field.said(sequence=FLOOR - 1), field.alice)


@attack
def a_model_that_is_a_path(field):
    return field.stated(field.said(model="../../other"), field.alice)


@attack
def a_minimum_above_the_sequence(field):
    return field.stated(field.said(minimum=99), field.alice)


@attack
def a_sequence_that_is_none(field):
    return field.stated(field.said(sequence=0), field.alice)


@attack
def a_sequence_too_large(field):
    return field.stated(field.said(sequence=2**64), field.alice)


@attack
def a_statement_of_a_later_schema(field):
    return field.stated(field.said(schema=2), field.alice)


@attack
def a_statement_that_says_more(field):
    return field.stated(field.said(threshold=0), field.alice)


@attack
def a_statement_that_is_none(field):
    return field.stated(b"[" * 5000, field.alice)


@attack
def a_huge_statement(field):
    return field.stated(field.said() + b" " * (2 << 20), field.alice)


@attack
def seventeen_signatures(field):
    return signers.state(field.copy(), field.statement(), field.signature() * 17)


@attack
def a_key_of_another_kind(field):
    rsa = signers.pair(field.work, "rsa", "rsa")
    return signers.state(field.copy(), field.statement(), signers.by_hand(field.statement(), rsa, field.work))


@attack
def one_signature_where_two_are_asked_for(field):
    (ETC / "threshold").write_text("2\n")
    return field.copy()


@attack
def the_same_signature_twice(field):
    (ETC / "threshold").write_text("2\n")
    return signers.state(field.copy(), field.statement(), field.signature() * 2)


@attack
def a_second_signature_by_a_revoked_key(field):
    (ETC / "threshold").write_text("2\n")
    return field.stated(field.statement(), field.alice, field.bob)


def resigned(field: Field, message: bytes, *who: Pair) -> Bundle:
    """The release that the device runs, with another statement."""
    release = signers.copied(field.running, field.work / "attack")
    return signers.state(release, message, b"".join(signers.signature(signer, message) for signer in who))


def said_of_running(field: Field, **changes: object) -> bytes:
    return json.dumps(json.loads((field.running.folder / bundles.STATEMENT).read_bytes()) | changes).encode()


@attack
def the_running_release_signed_by_a_stranger(field):
    return resigned(field, said_of_running(field), field.mallory)


@attack
def the_running_release_signed_by_a_revoked_key(field):
    return resigned(field, said_of_running(field), field.bob)


@attack
def the_running_release_below_the_floor(field):
    return resigned(field, said_of_running(field, sequence=FLOOR - 1, minimum=1), field.alice)


@attack
def a_board_file_that_is_empty(field):
    (ETC / "board").write_text("")
    return field.copy()


@attack
def a_board_file_that_says_two(field):
    (ETC / "board").write_text(f"{field.later.manifest.board} rpi4\n")
    return field.copy()


@attack
def a_folder_of_trust_that_others_can_change(field):
    ETC.chmod(0o777)
    return field.copy()


@attack
def a_trust_file_that_is_gone_with_its_disk(field):
    (ETC / "trusted").unlink()
    (ETC / "trusted").symlink_to("/nowhere/trusted")
    return field.copy()


@attack
def a_release_for_another_board(field):
    (ETC / "board").write_text("rpi4\n")
    return field.copy()


@attack
def a_floor_of_the_owner(field):
    (ETC / "floors").mkdir()
    (ETC / "floors" / field.later.manifest.name).write_text(f"{SEQUENCE + 2}\n")
    return field.copy()


@attack
def a_trust_file_that_others_can_change(field):
    (ETC / "trusted").chmod(0o666)
    return field.copy()


@attack
def a_trust_file_that_is_none(field):
    (ETC / "trusted").write_text("everybody *\n")
    return field.copy()


@attack
def a_trust_file_of_nobody(field):
    (ETC / "trusted").write_text("")
    return field.copy()


def trusting(field: Field) -> None:
    """Write what the device says at first."""
    ETC.chmod(0o755)
    for name in ("threshold", "board", "trusted"):
        (ETC / name).unlink(missing_ok=True)
    if (ETC / "floors").exists():
        (ETC / "floors" / field.later.manifest.name).unlink()
        (ETC / "floors").rmdir()
    signers.trusting(ETC, [field.alice, field.bob, field.carol], revoked=field.bob.public)


def main() -> None:
    """Try all attacks on a store, given a folder and that of a bundle."""
    work, folder = map(Path, sys.argv[1:])
    kind = board.load("local").resolved()
    program = programs.build(programs.RUNNER, kind.triple, kind.machine)
    pairs = {name: signers.pair(work, name) for name in ("alice", "bob", "carol", "mallory")}
    base = bundles.load(folder)
    running = signers.signed(base, work / "running", [pairs["alice"]], SEQUENCE, FLOOR)
    later = made_bundles.reweighted(base, work / "later-unsigned", seed=3)
    field = Field(work, running, signers.signed(later, work / "later", [pairs["alice"]], SEQUENCE + 1), **pairs)
    shell = LocalShell()
    store = Store(shell, str(work / "device"))

    def tried(bundle: Bundle) -> int:
        try:
            deploys.deploy(bundle, program, shell, store, keep=3, threads=1)
        except ToolchainError as fault:
            sys.stderr.write(f"  {fault.message}: {fault.details.splitlines()[:1]}\n")
            return fault.exit_code
        return 0

    trusting(field)
    assert tried(field.running) == 0
    ended = {}
    for name, function in ATTACKS.items():
        trusting(field)
        code = tried(function(field))
        trusting(field)
        ended[name] = [code, store.releases.current().digest == running.digest, trust.state(store).verified is not None]
        sys.stderr.write(f"{name}: {code}\n")
        shutil.rmtree(work / "attack")
    (ETC / "board").write_text(f"{later.manifest.board}\n")
    (ETC / "board").chmod(0o644)
    assert tried(field.later) == 0  # it is not that it takes nothing
    print(json.dumps(ended))  # noqa: T201


if __name__ == "__main__":
    main()
