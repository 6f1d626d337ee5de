"""Whom to believe, and what they must have said."""

from __future__ import annotations

import dataclasses

import pytest

from tests.support import signers
from toolchain.errors import InputError, VerificationError
from toolchain.signing import trust
from toolchain.signing.trust import Requirement, Trust


@pytest.fixture
def release(tiny, tmp_path, alice, bob):
    return signers.signed(tiny, tmp_path / "signed", [alice, bob], sequence=5, minimum=2)


def read(tmp_path, *lines, revoked="", threshold=1):
    (tmp_path / "trusted").write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / "revoked").write_text(revoked)
    return Trust.read(tmp_path / "trusted", tmp_path / "revoked", threshold)


def test_believes_who_is_trusted(release, tmp_path, alice, bob):
    approval = trust.approve(release, read(tmp_path, alice.line, bob.line, threshold=2))
    assert approval.signers == ("alice", "bob")
    assert (approval.statement.sequence, approval.statement.minimum) == (5, 2)


def test_reads_every_form_of_a_line(tmp_path, alice, bob):
    lines = [
        "# whom we trust",
        "",
        f"  alice\t{alice.public}  a comment",
        f'bob namespaces="git,edge-release" {bob.public}',
    ]
    assert [signer.name for signer in read(tmp_path, *lines).signers] == ["alice", "bob"]


def test_a_key_counts_once(release, tmp_path, alice):
    twice = read(tmp_path, alice.line, f"again {alice.public}", threshold=2)
    assert [signer.name for signer in twice.signers] == ["alice"]
    with pytest.raises(VerificationError, match="1 of 2 required trusted signatures"):
        trust.approve(release, twice)


@pytest.mark.parametrize("form", ["{0.public}", "{0.line}", "# gone\n{0.public} alice@desk"])
def test_does_not_believe_who_is_revoked(release, tmp_path, alice, form):
    with pytest.raises(VerificationError) as caught:
        trust.approve(release, read(tmp_path, alice.line, revoked=form.format(alice)))
    assert "is revoked" in caught.value.details


def test_does_not_believe_a_stranger(release, tmp_path):
    stranger = signers.pair(tmp_path, "mallory")
    with pytest.raises(VerificationError) as caught:
        trust.approve(release, read(tmp_path, stranger.line))
    assert "not among the trusted keys" in caught.value.details


def test_wants_the_board_and_the_sequence(release, tmp_path, alice):
    believed = read(tmp_path, alice.line)
    trust.approve(release, believed, Requirement(release.manifest.board, 5))
    with pytest.raises(VerificationError, match="not for rpi4"):
        trust.approve(release, believed, Requirement("rpi4"))
    with pytest.raises(VerificationError, match="lowest accepted is 6"):
        trust.approve(release, believed, Requirement(floor=6))


def test_refuses_a_statement_about_another_bundle(release, tiny, tmp_path, alice):
    statement, signatures = trust.documents(release)
    other = signers.state(signers.copied(tiny, tmp_path / "other"), statement, signatures)
    other = dataclasses.replace(other, digest="0" * 64)
    with pytest.raises(VerificationError, match="describes another bundle"):
        trust.approve(other, read(tmp_path, alice.line))


def test_refuses_a_bundle_without_signatures(tiny, tmp_path, alice):
    with pytest.raises(VerificationError, match="is not signed"):
        trust.approve(tiny, read(tmp_path, alice.line))
    assert trust.statement_of(tiny) is None


def test_refuses_one_without_half_of_it(release, tmp_path, alice):
    release.signatures.unlink()
    with pytest.raises(VerificationError, match="is not signed"):
        trust.statement_of(release)


WRONG = [
    "alice",
    "alice ssh-ed25519",
    "alice ssh-rsa AAAAB3NzaC1yc2E",
    "alice ssh-ed25519 AAAA",
    "alice ssh-ed25519 !!!!",
    'alice cert-authority="" {0}',
    'alice valid-before="20300101" {0}',
    'alice namespaces="git" {0}',
    'alice namespaces="edge-*" {0}',
    'alice namespaces=" {0}',
    "{0}",
]


@pytest.mark.parametrize("line", WRONG)
def test_refuses_a_line_that_cannot_be_right(tmp_path, alice, line):
    with pytest.raises(InputError, match="trusted:1 is not a valid line for a signer"):
        read(tmp_path, line.format(alice.public))


def test_refuses_a_file_that_is_none(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        Trust.read(tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="cannot be read"):
        Trust.read(tmp_path / "binary")
