"""`toolchain push` and `toolchain pull`: their options, their words and their JSON."""

from __future__ import annotations

import io
import os
import re
import sys

import click
import pytest

from tests.support.commands import done, parsed, toolchain
from tests.support.registries import Shelf, told
from toolchain import bundle
from toolchain.cli.registry import RegistryOptions
from toolchain.errors import InputError
from toolchain.registry import Access, Login


@pytest.fixture
def server():
    with told(Shelf()) as registry:
        yield registry


def test_a_push_names_what_it_pushed(tiny, server):
    address = f"oci://{server.host}/lab/tiny"
    first = done("push", tiny.folder, f"{address}:1")
    # How many bytes there are hangs on the lengths of paths and versions that provenance tells of.
    assert re.fullmatch(
        re.escape(f"{address}@sha256:{tiny.digest}: dense for local, 9 of 9 blobs, 0.0") + r"\d\d MB\n", first.out
    )
    assert parsed("push", tiny.folder, f"{address}:2") == {
        "address": f"{address}@sha256:{tiny.digest}",
        "tag": "2",
        "digest": f"sha256:{tiny.digest}",
        "blobs_sent": 0,
        "blobs_skipped": 9,
        "bytes_sent": 0,
        "companions": 3,
    }


def test_a_pull_names_what_it_pulled(tiny, server, tmp_path):
    address = f"oci://{server.host}/lab/tiny"
    done("push", tiny.folder, f"{address}:1")
    report = parsed("pull", f"{address}:1", "-o", tmp_path / "out")
    assert report["folder"] == str(tmp_path / "out")
    assert report["address"] == f"{address}@{report['digest']}" == f"{address}@sha256:{tiny.digest}"
    assert report["manifest"]["name"] == "dense"
    again = done("pull", f"{address}:1", "-o", tmp_path / "out")
    assert again.out == f"{tmp_path / 'out'}: dense for local, sha256:{tiny.digest}\n"
    assert f"{address}:1 is sha256:{tiny.digest}" in again.err
    assert bundle.load(tmp_path / "out").digest == tiny.digest


def test_what_is_in_no_registry_takes_no_options_of_one(tiny):
    result = toolchain("deploy", tiny.folder, "--username", "ann")
    assert (result.code, "only for packages in a registry" in result.err) == (2, True)


def test_an_address_is_looked_at_before_the_device():
    result = toolchain("deploy", "oci://host/X:1", "--board", "x86_64", "--host", "me@127.0.0.1:1")
    assert (result.code, "is not a valid address of a package" in result.err, "cannot be reached" in result.err) == (
        2,
        True,
        False,
    )


def test_a_password_is_read_from_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("a b \r\nmore\n"))
    options = RegistryOptions(username="ann", password_stdin=True)
    assert options.access() == Access(login=Login("ann", "a b "))


@pytest.mark.parametrize(
    "options", [RegistryOptions(username="ann"), RegistryOptions(username="ann", password_stdin=True)]
)
def test_no_password_is_told(monkeypatch, options):
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(InputError, match="no password for ann") as caught:
        options.access()
    assert "--password-stdin" in caught.value.hint


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_password_that_is_no_text_is_told(monkeypatch, errors):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\xff\n"), "utf-8", errors))
    with pytest.raises(InputError, match="not valid UTF-8"):
        RegistryOptions(username="ann", password_stdin=True).access()


def test_a_terminal_is_asked_for_a_password(monkeypatch):
    ours, theirs = os.openpty()
    prompts = []
    monkeypatch.setattr(click, "prompt", lambda text, **how: prompts.append((text, how["hide_input"])) or "secret")
    with os.fdopen(theirs) as terminal, os.fdopen(ours, "rb"):
        monkeypatch.setattr(sys, "stdin", terminal)
        assert RegistryOptions(username="ann").access().login == Login("ann", "secret")
    assert prompts == [("password of ann", True)]
