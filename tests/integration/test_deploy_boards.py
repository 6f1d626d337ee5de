"""From a container to an ARM board: linked in an image, deployed over real SSH, run and checked on a virtual board."""

from __future__ import annotations

import json

import pytest

from tests.support import images
from tests.support.commands import toolchain
from toolchain import board, bundle

# Emulation takes minutes for a network of pictures, and shows no more than a small one. test_containers.py builds the
# image of pynq as well.
NETWORKS = [(kind, "mobilenet") for kind in ("rpi4", "pynq")]
CASES = [("pynq", "mlp"), *(pytest.param(case, marks=pytest.mark.nightly) for case in NETWORKS)]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request):
    images.require(board.load(request.param[0]).image)
    return request.param


@pytest.fixture(scope="module")
def kind(case):
    return case[0]


@pytest.fixture(scope="module")
def packed(case, tmp_path_factory):
    """The same model, linked in a container and on this host."""
    made = {}
    for where in ("container", "host"):
        folder = tmp_path_factory.mktemp(where) / "bundle"
        seen = toolchain("build", case[1], "--board", case[0], "--toolchain", where, "-o", folder)
        assert seen.code == 0, seen.err
        made[where] = bundle.load(folder)
    return made


def test_both_toolchains_write_the_same_library(packed):
    inside, outside = packed["container"].manifest, packed["host"].manifest
    assert inside.files == outside.files
    assert inside.compiler["compiler"] == outside.compiler["compiler"]
    assert inside.compiler["image"].startswith("sha256:")
    assert outside.compiler["image"] == ""


def test_deploy(virtual_boards, kind, packed):
    words = ["--board", kind, "--host", virtual_boards.name(kind), "--devices", virtual_boards.devices]
    seen = toolchain("deploy", packed["container"].folder, *words, "--budget", 0, "--threads", 1, "--json", "-")
    assert seen.code == 0, seen.err
    report = json.loads(seen.out)
    assert report["outputs"]["ok"] is True
    assert report["outputs"]["max_rel_diff"] <= 1e-4
    assert report["emulated"] is True
    assert any("emulated" in text for text in report["warnings"])
    again = toolchain("status", *words)
    assert packed["container"].digest[:16] in again.out


def test_the_other_boards_bundle_is_refused(virtual_boards, kind, packed):
    other = "pynq" if kind == "rpi4" else "rpi4"
    words = ["--board", other, "--host", virtual_boards.name(other), "--devices", virtual_boards.devices]
    seen = toolchain("deploy", packed["host"].folder, *words, "--budget", 0)
    assert seen.code == 5
    assert f"not for board {other}" in seen.err
