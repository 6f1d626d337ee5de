"""Deploys over a real OpenSSH server: only what is missing travels, and the device runs it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.support import bundles, logins, nets, sshd, tracing
from tests.support.commands import toolchain
from toolchain import files


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    sshd.require_sshd()
    with sshd.running(tmp_path_factory.mktemp("sshd")) as running:
        yield running


@pytest.fixture
def device(server, tmp_path):
    """What every command for one fresh device begins with."""
    options = ["--board", "x86_64", "--host", server.host, "-i", server.key_file]
    return [*options, "--known-hosts", server.known_hosts, "--root", tmp_path / "device"]


def report(*arguments):
    outcome = toolchain(*arguments, "--json", "-")
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_only_what_is_missing_travels(device, bulky, tmp_path):
    old, new = (bundles.variant(release, tmp_path / release.digest, {}, board="x86_64") for release in bulky)
    first = report("deploy", old.folder, *device, "--budget", 0)
    assert first["outputs"]["ok"] is True
    assert first["transfer"]["blobs_skipped"] == 0
    assert first["transfer"]["bytes_sent"] > old.manifest.files["params.safetensors"].size

    again = report("deploy", old.folder, *device, "--budget", 0)
    assert again["transfer"]["blobs_sent"] == 0
    assert again["transfer"]["bytes_sent"] + again["transfer"]["bytes_received"] <= 36 * 1024

    changed = report("deploy", new.folder, *device, "--budget", 0)
    assert changed["transfer"]["blobs_sent"] == 1
    size = new.manifest.files["params.safetensors"].size
    assert size < changed["transfer"]["bytes_sent"] < size + 64 * 1024
    assert bundles.whole_release(tmp_path / "device") == new.digest


def test_a_deploy_needs_few_logins(device, server, tiny_for_ssh):
    """A profile may take seconds in each: one is for the checks, two are for the deploy, with its lock."""
    before = server.log().count("Starting session: command")
    report("deploy", tiny_for_ssh.folder, *device, "--budget", 0)
    assert server.log().count("Starting session: command") - before <= 4


ODD = {
    "a profile that prints": ("bash", {".bashrc": "echo '*** WELCOME ***'\n"}, ""),
    "a csh": ("tcsh", {}, ""),
    "one session": ("sh", {}, "MaxSessions 1"),
    "only the newer name of a key exchange": ("sh", {}, "KexAlgorithms curve25519-sha256"),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_devices(case, tiny_for_ssh, tmp_path, monkeypatch):
    shell, profile, options = ODD[case]
    monkeypatch.setenv("TOOLCHAIN_SSH_PASSWORD", logins.PASSWORD)
    with logins.serving(tmp_path / "sshd", shell, files=profile, options=options) as login:
        login_options = ["--board", "x86_64", "--host", login.host, "--known-hosts", login.server.known_hosts]
        outcome = toolchain("deploy", tiny_for_ssh.folder, *login_options, "--budget", 0)
        assert outcome.code == 0, outcome.err
        assert outcome.err.count("they are ignored") == bool(profile)
        assert toolchain("status", *login_options).code == 0
        assert toolchain("bench", *login_options, "--budget", 0.05).code == 0


def test_a_deploy_talks_to_its_device_and_to_nobody_else(device, server, tmp_path):
    """From the model to the report: no name is looked up, and nothing is connected to but the device's SSH port."""
    source = nets.save(nets.relu((2, 3)), tmp_path)
    command = [Path(sys.executable).with_name("toolchain"), "deploy", source, *device, "--budget", 0, "--json", "-"]
    environment = {**os.environ, "HOME": str(tmp_path), "TOOLCHAIN_CACHE": str(files.cache_root())}
    out, calls = tracing.traced(command, tmp_path / "calls", "%network", environment)
    assert json.loads(out)["outputs"]["ok"] is True
    assert tracing.peers(calls) == {("127.0.0.1", server.port)}


def test_the_commands_of_a_day(device, tiny_for_ssh, bulky, tmp_path):
    bigger = bundles.variant(bulky[0], tmp_path / "bigger", {}, board="x86_64")
    for release in (tiny_for_ssh, bigger):
        report("deploy", release.folder, *device, "--budget", 0)
    assert toolchain("status", *device).code == 0
    assert report("bench", *device, "--budget", 0.05)["bundle_digest"] == f"sha256:{bigger.digest}"
    assert toolchain("rollback", *device).code == 0
    assert bundles.whole_release(tmp_path / "device") == tiny_for_ssh.digest


def test_old_releases_go_and_take_their_blobs(device, tiny_for_ssh, tmp_path):
    digests = []
    for seed in range(5):
        release = bundles.reweighted(tiny_for_ssh, tmp_path / f"bundle-{seed}", seed=seed)
        report("deploy", release.folder, *device, "--budget", 0)
        digests.append(release.digest)
    releases = sorted(path.name for path in (tmp_path / "device" / "releases").iterdir())
    assert releases == sorted(digests[-3:])
    linked = [path for path in (tmp_path / "device" / "blobs" / "sha256").iterdir() if path.stat().st_nlink < 2]
    assert linked == []


def test_a_device_by_name(server, tiny_for_ssh, tmp_path, monkeypatch):
    lab = tmp_path / "devices.toml"
    lab.write_text(f'[devices.bench-1]\nboard = "x86_64"\nhost = "{server.host}"\nroot = "{tmp_path}/device"\n')
    keys = ["-i", server.key_file, "--known-hosts", server.known_hosts, "--devices", lab]
    assert (
        toolchain("deploy", tiny_for_ssh.folder, "--board", "x86_64", "--host", "bench-1", *keys, "--budget", 0).code
        == 0
    )
    monkeypatch.setenv("TOOLCHAIN_DEVICES", str(lab))
    assert toolchain("status", "--board", "x86_64", *keys[:4]).code == 0
    assert bundles.whole_release(tmp_path / "device") == tiny_for_ssh.digest


def test_a_device_reached_through_another(server, tiny_for_ssh, tmp_path):
    with sshd.running(tmp_path / "behind") as behind:
        known_hosts = tmp_path / "known"
        known_hosts.write_text(server.known_hosts.read_text() + behind.known_hosts.read_text())
        config = tmp_path / "config"
        config.write_text(
            f"Host hidden\n  HostName 127.0.0.1\n  Port {behind.port}\n  IdentityFile {behind.key_file}\n"
            f"  ProxyJump gate\nHost gate\n  HostName 127.0.0.1\n  Port {server.port}\n"
            f"  IdentityFile {server.key_file}\nHost *\n  User {server.user}\n  UserKnownHostsFile {known_hosts}\n"
        )
        options = ["--board", "x86_64", "--host", "hidden", "--ssh-config", config, "--root", tmp_path / "device"]
        assert report("deploy", tiny_for_ssh.folder, *options, "--budget", 0)["outputs"]["ok"] is True


def test_times_of_an_emulator_are_marked(server, tiny_for_ssh, tmp_path):
    lab = tmp_path / "devices.toml"
    lab.write_text(f'[a]\nboard = "x86_64"\nhost = "{server.host}"\nroot = "{tmp_path}/device"\nemulated = true\n')
    keys = ["-i", server.key_file, "--known-hosts", server.known_hosts, "--devices", lab]
    outcome = toolchain(
        "deploy", tiny_for_ssh.folder, "--board", "x86_64", *keys, "--budget", 0, "--json", tmp_path / "r.json"
    )
    assert json.loads((tmp_path / "r.json").read_text())["emulated"] is True
    latency = next(line for line in outcome.out.splitlines() if line.startswith("latency"))
    assert "emulated" in latency
