"""Processes share the weights of a signed release, and what another process offers changes nothing that is computed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from tests.support import signers
from toolchain import bundle as bundles
from toolchain import resources
from toolchain.native import programs

APPLICATION = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
import edge_model
given = np.load(sys.argv[5])
with edge_model.Model(sys.argv[3], library=sys.argv[2], trust=sys.argv[4]) as model:
    (name,) = model.inputs
    (found,) = model.run({name: given}).values()
    np.save(sys.argv[6], found)
    print(model.weights, flush=True)
    sys.stdin.read()
"""
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


@pytest.fixture(scope="module")
def release(bulky, alice, tmp_path_factory):
    """A signed release with 4 MiB of weights, whom its device trusts, and its reference."""
    folder = tmp_path_factory.mktemp("shared")
    signed = signers.signed(bulky[0], folder / "signed", [alice])
    reference = bundles.Reference.read(signed.reference)
    np.save(folder / "given.npy", *reference.inputs.values())
    np.save(folder / "wanted.npy", *reference.outputs.values())
    return signers.released(signed, folder), signers.trusting(folder / "trust", [alice]), folder


@contextlib.contextmanager
def application(release, native):
    """Run the release in a process that stays, and yield where its weights are."""
    path, trust, folder = release
    library = programs.build(programs.LIBRARY, native.triple, native.machine).path
    command = [resources.RUNTIME / "sdk", library, path, trust, folder / "given.npy", folder / "found.npy"]
    process = subprocess.Popen(
        [sys.executable, "-c", APPLICATION, *map(str, command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        weights = process.stdout.readline().strip()
        np.testing.assert_allclose(np.load(folder / "found.npy"), np.load(folder / "wanted.npy"), rtol=1e-4, atol=1e-5)
        yield weights
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


@contextlib.contextmanager
def offered(data: bytes, name: str, seals: int):
    """Offer a file in memory, as a process of the same user may do."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(file, data)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
        yield file
    finally:
        with contextlib.suppress(OSError):
            os.close(file)


def weights_of(release) -> tuple[bytes, str]:
    data = (release[0] / bundles.PARAMS).read_bytes()
    return data, f"edge-{hashlib.sha256(data).hexdigest()}"


def test_processes_share_the_weights(release, native):
    with contextlib.ExitStack() as stack:
        where = [stack.enter_context(application(release, native)) for _ in range(3)]
        assert where == ["sealed", "shared", "shared"]
    with contextlib.ExitStack() as later:
        with application(release, native) as first:
            later.enter_context(application(release, native))
        # The process that made the file has ended; the others keep it.
        assert first == "sealed"
        assert later.enter_context(application(release, native)) == "shared"
    with application(release, native) as first_process:
        assert first_process == "sealed"


def test_a_file_of_another_process_is_taken_if_it_is_right(release, native):
    data, name = weights_of(release)
    with offered(data, name, SEALS), application(release, native) as weights:
        assert weights == "shared"


@pytest.mark.parametrize("kind", ["other bytes", "a byte less", "another name"])
def test_wrong_files_of_other_processes_are_not_used(kind, release, native):
    data, name = weights_of(release)
    data = {"other bytes": data[:-1] + bytes([data[-1] ^ 1]), "a byte less": data[:-1]}.get(kind, data)
    name = name[:-1] + ("0" if name[-1] != "0" else "1") if kind == "another name" else name
    with offered(data, name, SEALS), application(release, native) as weights:
        assert weights == "sealed"


@pytest.mark.parametrize("seals", [0, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK])
def test_files_that_somebody_may_still_change_are_not_used(seals, release, native):
    """The load waits for one that is not sealed yet, until its process gives it up."""
    data, name = weights_of(release)
    with offered(data, name, seals) as file:
        ending = threading.Timer(2, os.close, [file])
        ending.start()
        try:
            with application(release, native) as weights:
                assert weights == "sealed"
        finally:
            ending.join()


def test_wrong_weights_are_refused(release, native):
    path, trust, folder = release
    data, _ = weights_of(release)
    (path / bundles.PARAMS).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    try:
        library = programs.build(programs.LIBRARY, native.triple, native.machine).path
        command = [resources.RUNTIME / "sdk", library, path, trust, folder / "given.npy", folder / "found.npy"]
        ended = subprocess.run(
            [sys.executable, "-c", APPLICATION, *map(str, command)],
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert ended.returncode != 0
        assert "the file is not the one that was signed" in ended.stderr
    finally:
        (path / bundles.PARAMS).write_bytes(data)
