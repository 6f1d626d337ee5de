"""Runs on a user's own inputs over SSH, on an emulated board, and by hand as docs/device.md has it."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.support import bundles, sshd
from tests.support.commands import done, parsed
from tests.support.paths import ROOT
from toolchain import board, bundle, tensors
from toolchain.device import sampling

X = np.random.default_rng(3).standard_normal((3, 1, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    sshd.require_sshd()
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def device(server, tiny_for_ssh, tmp_path):
    """What every command for a device that has a release begins with."""
    options = ["--board", "x86_64", "--host", server.host, "-i", server.key_file, "--known-hosts", server.known_hosts]
    options += ["--root", tmp_path / "device"]
    done("deploy", tiny_for_ssh.folder, *options, "--budget", 0)
    return options


def expected(release):
    weights = list(tensors.load(release.folder / bundle.PARAMS).values())
    product, offset = (next(weight for weight in weights if weight.ndim == rank) for rank in (2, 1))
    return np.maximum(X @ product + offset, 0)


def test_over_ssh(device, tiny_for_ssh, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "_PIECE_SAMPLES", 2)
    np.savez(tmp_path / "x.npz", x=X)
    report = parsed("run", *device, "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz")
    assert (report["samples"], report["pieces"]) == (3, 2)
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], expected(tiny_for_ssh), rtol=1e-4, atol=1e-5)
    assert bundles.whole_release(tmp_path / "device") == tiny_for_ssh.digest


def test_by_hand(device, server, tiny_for_ssh, tmp_path):
    """The lines of the page, with folders of this test's: Python on this machine, and the rest on the device."""
    page = (ROOT / "docs/device.md").read_text(encoding="utf-8").partition("### By hand")[2].partition("\n## ")[0]
    python, shell = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "sh"))
    program_text = python.replace('numpy.zeros((3, 1, 8), "float32")', "numpy.load('x.npy')").partition("print")[0]
    np.save(tmp_path / "x.npy", X)
    subprocess.run([sys.executable, "-c", program_text], cwd=tmp_path, check=True)
    script = shell.replace("~/.local/share/edge-toolchain", str(tmp_path / "device")).replace("~/", f"{tmp_path}/")
    subprocess.run(["ssh", "-F", server.config, "board", script], check=True)
    np.testing.assert_allclose(
        tensors.load(tmp_path / "out.safetensors")["y"], expected(tiny_for_ssh), rtol=1e-4, atol=1e-5
    )


@pytest.mark.nightly
def test_on_an_emulated_board(virtual_boards, tmp_path):
    kind = board.load("rpi4").resolved()
    release = bundles.build(tmp_path, rows=8, columns=4, kind=kind, samples=5)
    options = ["--board", "rpi4", "--host", virtual_boards.name("rpi4"), "--devices", virtual_boards.devices]
    words_of_deploy = ["deploy", release.folder, *options, "--budget", 0, "--samples", 5, "--threads", 1, "--json", "-"]
    deployed = json.loads(done(*words_of_deploy).out)
    assert (deployed["fidelity"]["samples"], deployed["fidelity"]["flips"]) == (5, 0)
    np.savez(tmp_path / "x.npz", x=X)
    report = parsed("run", *options, "--input", tmp_path / "x.npz", "-o", tmp_path / "y.npz", "--threads", 1)
    assert report["emulated"] is True
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], expected(release), rtol=1e-4, atol=1e-5)
