"""What the commands make of what is asked of them; tests/integration/test_containers.py has an engine."""

from __future__ import annotations

import json

import pytest

from tests.support.commands import done, parsed, toolchain
from toolchain.checks import Outcome
from toolchain.cli.containers import ImageOptions
from toolchain.containers import images
from toolchain.containers.build import BuiltImage
from toolchain.containers.images import ImageState

STATES = (
    ImageState("pynq", "edge-toolchain/pynq:1", "arm", "gcc 12", "ready", "sha256:0123456789abcdef99", 250_000_000),
    ImageState("rpi4", "edge-toolchain/rpi4:1", "aarch64", "gcc 13", "missing"),
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("TOOLCHAIN_NDK", "TOOLCHAIN_NDK_SHA256"):
        monkeypatch.delenv(name, raising=False)


def test_images_are_listed(monkeypatch):
    monkeypatch.setattr(images, "examine", lambda: STATES)
    head, pynq, rpi4 = done("containers", "list").out.splitlines()
    assert head.split() == ["IMAGE", "COMPILER", "STATE", "SIZE", "ID"]
    assert pynq.split() == ["pynq", "gcc", "12", "ready", "250.0", "MB", "0123456789abcdef"]
    assert rpi4.split() == ["rpi4", "gcc", "13", "missing"]
    assert [image["state"] for image in parsed("containers", "list")] == ["ready", "missing"]


def test_what_the_environment_says_stands_behind_the_options(monkeypatch):
    monkeypatch.setenv("TOOLCHAIN_NDK", "old.zip")
    monkeypatch.setenv("TOOLCHAIN_NDK_SHA256", "12")
    options = ImageOptions().build_options()
    assert (options.ndk, options.ndk_sha256, options.cache) == ("old.zip", "12", True)
    options = ImageOptions("new.zip", "34", no_cache=True).build_options()
    assert (options.ndk, options.ndk_sha256, options.cache) == ("new.zip", "34", False)


@pytest.mark.parametrize("names", [(), ("pynq",)])
def test_all_images_are_built_or_the_named_ones(names, monkeypatch):
    builds = []

    def build(name, options, tell):
        builds.append((name, options.cache))
        tell(f"building {name}")
        return BuiltImage(name, f"edge-toolchain/{name}:1", "sha256:01", 0, 0.0)

    monkeypatch.setattr(images, "build", build)
    result = done("containers", "build", *names, "--no-cache")
    expected = names or images.names()
    assert builds == [(name, False) for name in expected]
    assert result.out.splitlines() == [f"edge-toolchain/{name}:1: sha256:01" for name in expected]
    assert result.err.splitlines() == [f"building {name}" for name in expected]


def test_a_check_that_fails_is_a_verification_error(monkeypatch):
    passed = Outcome("compiles", "", "an object file", "", passed=True)
    outcomes = {"pynq": (passed, Outcome("no network", "", "it answers", "", passed=False))}
    monkeypatch.setattr(images, "check", lambda name: outcomes[name])
    result = toolchain("containers", "check", "pynq")
    assert result.code == 5
    assert result.out.splitlines()[1].split() == ["pynq", "compiles", "an", "object", "file"]
    assert (
        "error: 1 check(s) failed (exit code 5)\n  pynq: no network: it answers\nhint: toolchain containers build"
        in result.err
    )
    result = toolchain("containers", "check", "pynq", "--json")
    assert json.loads(result.out)["pynq"] == [
        {"what": "compiles", "passed": True, "seen": "an object file"},
        {"what": "no network", "passed": False, "seen": "it answers"},
    ]
