"""A bundle gets signatures, and stays what it is."""

from __future__ import annotations

import pytest

from tests.support import signers
from toolchain import bundle as bundles
from toolchain.errors import InputError
from toolchain.signing import sshsig
from toolchain.signing.keys import sign
from toolchain.signing.statement import Order
from toolchain.signing.trust import Trust, approve, documents


@pytest.fixture
def copy(tiny, tmp_path):
    return signers.copied(tiny, tmp_path / "copy")


def believed(bundle, tmp_path, *who, threshold=1):
    folder = signers.trusting(tmp_path / "trust", who)
    return approve(bundles.load(bundle.folder), Trust.read(folder / "trusted", None, threshold))


def test_leaves_the_digest_alone(copy, tiny, alice):
    sign(copy, alice.key, Order(1))
    assert bundles.load(copy.folder).digest == tiny.digest


def test_ssh_keygen_takes_it(copy, tmp_path, alice):
    sign(copy, alice.key, Order(1))
    allowed = signers.trusting(tmp_path / "trust", [alice]) / "trusted"
    statement = (copy.folder / bundles.STATEMENT).read_bytes()
    assert signers.holds_by_hand(statement, copy.folder / bundles.SIGNATURES, alice, allowed)
    assert not signers.holds_by_hand(statement + b" ", copy.folder / bundles.SIGNATURES, alice, allowed)


def test_travels_in_a_package(copy, tmp_path, alice):
    sign(copy, alice.key, Order(4))
    bundles.pack(bundles.load(copy.folder), tmp_path / "package")
    back = bundles.unpack(tmp_path / "package", tmp_path / "back")
    assert believed(back, tmp_path, alice).statement.sequence == 4


def test_adds_a_signature(copy, tmp_path, alice, bob):
    sign(copy, alice.key, Order(4))
    signed = sign(bundles.load(copy.folder), bob.key, None)
    assert len(signed.keys) == 2
    assert believed(copy, tmp_path, alice, bob, threshold=2).signers == ("alice", "bob")


def test_signing_twice_leaves_one_signature(copy, alice):
    sign(copy, alice.key, Order(4))
    before = documents(bundles.load(copy.folder))
    sign(bundles.load(copy.folder), alice.key, Order(4))
    assert documents(bundles.load(copy.folder)) == before


def test_signs_beside_somebody_who_used_ssh_keygen(copy, tmp_path, alice, bob):
    sign(copy, alice.key, Order(4))
    statement = (copy.folder / bundles.STATEMENT).read_bytes()
    signers.state(copy, statement, signers.by_hand(statement, alice, tmp_path, hashed="sha256"))
    sign(bundles.load(copy.folder), bob.key, None)
    assert believed(copy, tmp_path, alice, bob, threshold=2).signers == ("alice", "bob")


def test_does_not_sign_what_is_written_in_a_form_of_its_own(copy, tmp_path, alice, bob):
    sign(copy, alice.key, Order(4))
    loose = (copy.folder / bundles.STATEMENT).read_bytes().replace(b"\n", b" ")
    signers.state(copy, loose, signers.by_hand(loose, alice, tmp_path))
    with pytest.raises(InputError, match="does not have the form"):
        sign(bundles.load(copy.folder), bob.key, None)


def test_no_more_signatures_than_a_device_takes(copy, tmp_path, alice):
    for number in range(sshsig.MOST):
        sign(bundles.load(copy.folder), signers.pair(tmp_path, f"key-{number}").key, Order(1))
    with pytest.raises(InputError, match="devices accept no more"):
        sign(bundles.load(copy.folder), alice.key, None)


def test_another_order_must_be_asked_for(copy, tmp_path, alice):
    sign(copy, alice.key, Order(4))
    again = bundles.load(copy.folder)
    with pytest.raises(InputError, match="is signed with sequence 4"):
        sign(again, alice.key, Order(5))
    sign(again, alice.key, Order(5), replace=True)
    assert believed(copy, tmp_path, alice).statement.sequence == 5


def test_the_first_signature_needs_an_order(copy, alice):
    with pytest.raises(InputError, match="no statement yet"):
        sign(copy, alice.key, None)
    assert not (copy.folder / bundles.STATEMENT).exists()
