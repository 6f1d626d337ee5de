"""Addresses of packages: what is one, what is none, and whether anybody is in between."""

from __future__ import annotations

import time

import pytest

from toolchain.errors import InputError
from toolchain.registry import Address, is_address, parse

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci://ghcr.io/lab/edge/mobilenet:1.0", Address("ghcr.io", "lab/edge/mobilenet", "1.0")),
        (f"oci://ghcr.io/x@{DIGEST}", Address("ghcr.io", "x", digest=DIGEST)),
        (f"oci://ghcr.io/x:v_1-a@{DIGEST}", Address("ghcr.io", "x", "v_1-a", DIGEST)),
        ("oci://127.0.0.1:5000/a.b__c---d/e:1", Address("127.0.0.1:5000", "a.b__c---d/e", "1")),
        ("oci://[::1]:5000/x:1", Address("[::1]:5000", "x", "1")),
        ("oci://localhost/x", Address("localhost", "x")),
    ],
)
def test_an_address_is_read_and_written(text, expected):
    assert is_address(text)
    assert parse(text) == expected
    assert str(expected) == text


@pytest.mark.parametrize(
    "text",
    [
        "oci://",
        "oci://host",
        "oci://host/",
        "oci:///x:1",
        "oci://host/X:1",
        "oci://host/../etc:1",
        "oci://host/x//y:1",
        "oci://host/x:",
        "oci://host/x:a b",
        "oci://host/x:1\n",
        "oci://host/x@sha256:abc",
        f"oci://host/x@sha512:{'a' * 64}",
        "oci://host:0/x:1",
        "oci://host:99999/x:1",
        "oci://ho st/x:1",
        "oci://-host/x:1",
        "oci://[::zz]/x:1",
        "oci://[:::]/x:1",
        "oci://ann:secret@host/x:1",
        "oci://host/x:1?insecure=true",
        "oci://höst/x:1",
        f"oci://host/{'x' * 600}:1",
        "http://host/x:1",
    ],
)
def test_what_is_malformed_is_refused_with_the_form(text):
    with pytest.raises(InputError, match="is not a valid address of a package in a registry") as caught:
        parse(text)
    assert "oci://HOST[:PORT]/REPOSITORY:TAG" in caught.value.details


def test_a_long_word_is_refused_at_once():
    start = time.perf_counter()
    with pytest.raises(InputError):
        parse(f"oci://host/{'a-' * 200}!")
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(
    ("registry", "expected"),
    [
        ("127.0.0.1:5000", True),
        ("127.9.9.9", True),
        ("localhost", True),
        ("localhost:5000", True),
        ("[::1]:5000", True),
        ("[::1]", True),
        ("10.0.0.1", False),
        ("localhost.evil.org", False),
        ("127.0.0.1.evil.org", False),
        ("ghcr.io", False),
        ("[2001:db8::1]", False),
    ],
)
def test_this_machine_is_known(registry, expected):
    assert Address(registry, "x").is_loopback is expected


def test_a_place_by_its_digest_has_no_tag():
    assert parse("oci://h/x:1").pinned(DIGEST) == Address("h", "x", digest=DIGEST)
