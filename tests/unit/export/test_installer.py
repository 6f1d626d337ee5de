"""The text of an installer: every shell can read it, it is sealed as a whole, and its steps are those of a deploy."""

from __future__ import annotations

import hashlib
import shutil
import subprocess

import pytest

from tests.support import bundles
from tests.support.parts import require
from toolchain import board, export
from toolchain.device import lock, scripts
from toolchain.device.probe import script as probe_script
from toolchain.export import offline
from toolchain.export.offline import Extent


@pytest.fixture
def update(tiny, program):
    with export.prepare(tiny, board.load("local").resolved(), program) as update:
        yield update


def texts(update):
    extents = {digest: Extent(path.stat().st_size, 0) for digest, path in update.contents.items()}
    return {kind: offline.installer_text(update, extents, in_file=kind) for kind in (True, False)}


@pytest.mark.parametrize("shell", ["dash", "bash", "mksh", "busybox"])
def test_every_shell_can_read_it(update, tmp_path, shell):
    require(shell, shell, shutil.which(shell) is not None)
    command = [shell, "sh"] if shell == "busybox" else [shell]
    for text in texts(update).values():
        (tmp_path / "script").write_bytes(text)
        completed = subprocess.run([*command, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
        assert (completed.returncode, completed.stderr) == (0, "")


def test_the_steps_are_the_texts_that_a_deploy_sends(update):
    text = texts(update)[True].decode()
    digests = sorted(update.shipment.blobs)
    for step in (
        *(probe_script.FACTS, scripts.SWEEP, scripts.examine(digests), scripts.accept(digests), lock.SAID, lock.TAKE),
        *(scripts.activate(update.bundle.digest), scripts.prune("$keep"), lock.PEEK),
        *(scripts.install(kind, *folder) for kind, folder in update.shipment.folders.items()),
    ):
        assert step.strip() in text


def test_it_ends_before_its_contents_begin(update):
    """The shell reads no byte after the last line, and contents are found where they are."""
    text = texts(update)[True]
    assert len(text) % offline.BLOCK == 0
    assert text.rstrip(b"\n").endswith(b'\nmain "$@"; exit')
    for digest, path in update.contents.items():
        assert f"{digest}:{-(-path.stat().st_size // 1024)}:{path.stat().st_size}:{len(text) + 1}".encode() in text


def test_the_seal_covers_all_that_follows_it(update, tmp_path):
    path = tmp_path / "update"
    path.write_bytes(texts(update)[True] + b"contents")
    offline.seal(path)
    sealed = path.read_bytes()
    first = sealed.index(b"\n}\n") + 3
    assert hashlib.sha256(sealed[first:]).hexdigest().encode() in sealed[:first]
    assert f"tail -c +{first + 1} ".encode() in sealed[:first]
    assert sealed[first:].endswith(b"contents")


def test_a_name_is_one_line_and_one_word(tiny, program):
    evil = bundles.renamed(tiny, "a'b\nroot=/etc\x1b")
    with export.prepare(evil, board.load("local").resolved(), program) as update:
        assert b"""\nmodel='a'"'"'b?root=/etc?'\n""" in texts(update)[False]
