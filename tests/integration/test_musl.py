"""Devices with musl: the same bundles, and programs that are linked with musl.

On x86-64 they run on this machine, with Debian's musl; on 64-bit Arm on a virtual board with musl and busybox.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
from pathlib import Path

import pytest

from tests.support import boards, bundles, sshd, userlands
from tests.support.commands import toolchain
from tests.support.networks import NINE, deployed
from tests.support.parts import require
from toolchain import architecture
from toolchain.device.store import Store
from toolchain.native import elf, programs
from toolchain.shell import SshOptions, open_shell

OWN = architecture.of_machine(platform.machine())


@pytest.fixture(scope="module")
def loader():
    """The program that starts programs for musl, and is their C library."""
    path = Path(OWN.musl_loader)
    require("musl", "musl", path.exists())
    return path


def built(name, row=OWN):
    return programs.build(name, row.musl, row.machine)


@pytest.fixture
def small_system(loader, tmp_path):
    """This machine as a device with musl and busybox, through SSH; its own glibc stays hidden."""
    sshd.require_sshd()
    tools = userlands.busybox(tmp_path / "tools")
    (tools / "ldd").unlink(missing_ok=True)
    (tools / "ldd").write_text(f'#!/bin/sh\nexec {loader} "$@"\n')
    (tools / "ldd").chmod(0o755)
    with sshd.running(tmp_path / "sshd", options=f"SetEnv PATH={tools}") as server:
        yield server


@pytest.mark.parametrize("name", [programs.RUNNER, pytest.param(programs.BOARD_SERVER, marks=pytest.mark.nightly)])
def test_a_program_needs_musl_alone(name, loader):
    """Symbols that musl has from 1.2.3 on; a thread has a stack as with glibc."""
    program = built(name)
    assert program.musl
    assert program.glibc == ""
    assert elf.foreign_to_musl(program.path) == []
    assert undefined(program.path) - defined(loader) == set()
    headers = subprocess.run(["readelf", "-lW", program.path], capture_output=True, text=True, check=True).stdout
    assert f"interpreter: {OWN.musl_loader}" in headers
    assert next(line for line in headers.splitlines() if "GNU_STACK" in line).split()[5] == "0x800000"


def defined(library):
    return symbols("--defined-only", library)


def undefined(program):
    """Return the functions that a program needs; weak ones may be missing."""
    return symbols("--undefined-only", program) - symbols("--undefined-only", program, kinds="wv")


def symbols(option, path, kinds=""):
    lines = subprocess.run(["nm", "-D", option, path], capture_output=True, text=True, check=True).stdout.splitlines()
    words = [line.split() for line in lines]
    return {line[-1].partition("@")[0] for line in words if not kinds or line[-2] in kinds}


def test_deploy(small_system, tiny, tmp_path):
    """One command, as on any device; the release is the one that a device with glibc gets."""
    server = small_system
    bundle = bundles.variant(tiny, tmp_path / "bundle", {}, board="x86_64")
    words = ["--board", "x86_64", "--host", server.host, "-i", server.key_file, "--known-hosts", server.known_hosts]
    words += ["--root", tmp_path / "device"]
    seen = toolchain("deploy", bundle.folder, *words, "--budget", 0.1, "--json", "-")
    assert seen.code == 0, seen.err
    report = json.loads(seen.out)
    assert report["outputs"]["ok"] is True
    assert (report["host"]["glibc"], report["host"]["musl_version"]) == ("", "1.2.3")
    assert report["bundle_digest"] == f"sha256:{bundle.digest}"
    assert [path.name for path in (tmp_path / "device" / "runners").iterdir()] == [built(programs.RUNNER).sha256]
    again = toolchain("bench", *words, "--budget", 0.1)
    assert again.code == 0, again.err


@pytest.mark.nightly  # the board server is built first
def test_tune(small_system, tmp_path):
    server = small_system
    words = ["--board", "x86_64", "--host", server.host, "-i", server.key_file, "--known-hosts", server.known_hosts]
    words += ["--root", tmp_path / "device", "--records", tmp_path / "records.jsonl", "--trials", "4", "--no-compare"]
    search = ["--without", "all", "--op", "matmul", "--tuner", "evolutionary-random"]
    seen = toolchain("tune", "mlp", *search, *words, "--json", "-")
    assert seen.code == 0, seen.err
    assert [path.name for path in (tmp_path / "device" / "servers").iterdir()] == [built(programs.BOARD_SERVER).sha256]


@pytest.mark.nightly  # networks take most of a minute each
@pytest.mark.usefixtures("loader")
@pytest.mark.parametrize("name", NINE)
def test_networks(name, native, tmp_path, monkeypatch):
    plain = Store.facts
    on_musl = {"glibc": "", "musl": True, "musl_loaders": (OWN.musl_loader,)}
    monkeypatch.setattr(Store, "facts", lambda self: dataclasses.replace(plain(self), **on_musl))
    done = deployed(name, native, built(programs.RUNNER), tmp_path)
    assert done.changed
    assert done.difference.max_rel < 1e-4


@pytest.fixture(scope="module")
def virtual(tmp_path_factory):
    with boards.running(tmp_path_factory.mktemp("farm"), musl=True, rpi4=1) as farm:
        yield farm


@pytest.mark.nightly  # under emulation
@pytest.mark.xdist_group("docker")
@pytest.mark.parametrize("name", NINE)
def test_a_virtual_board(virtual, name):
    host = virtual.name("rpi4")
    assert host == "rpi4-musl-1"
    words = ["--host", host, "--devices", virtual.devices, "--budget", 0, "--threads", 1, "--json", "-"]
    seen = toolchain("deploy", name, *words, "--toolchain", "host")
    assert seen.code == 0, seen.err
    report = json.loads(seen.out)
    assert report["outputs"]["ok"] is True
    assert report["host"]["musl_version"] == "1.2.3"


@pytest.mark.nightly
@pytest.mark.xdist_group("docker")
def test_programs_for_glibc_do_not_start_there(virtual):
    """It is musl's board: what is for glibc is for another machine."""
    program = programs.build(programs.RUNNER, "aarch64-linux-gnu", "aarch64")
    with open_shell(virtual.name("rpi4"), config=SshOptions(config_file=virtual.config, agent=False)) as shell:
        shell.push(program.path, "runner")
        assert "not found" in shell.run("chmod +x runner; ./runner --version 2>&1", check=False).stdout
