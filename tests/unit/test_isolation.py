"""What a session of tests keeps of the user's environment; tests/integration/test_session.py runs whole sessions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import session
from tests.support.paths import ROOT

READ = re.compile(r'environ(?:\.get\(|\[)"(TOOLCHAIN_\w+)"|"(TOOLCHAIN_\w+)" (?:not )?in os\.environ')
PRODUCTS = {"TOOLCHAIN_ADB", "TOOLCHAIN_CACHE", "TOOLCHAIN_DEVICES"}
"""Variables of the product that tests set and look at."""


def test_every_variable_that_tests_read_is_a_switch():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    names = {name for text in texts for groups in READ.findall(text) for name in groups if name}
    assert names - PRODUCTS <= session.SWITCHES


def test_every_variable_that_make_and_ci_set_is_a_switch():
    texts = (ROOT / "Makefile").read_text(), (ROOT / ".ci" / "run").read_text()
    assert {name for text in texts for name in re.findall(r"\b(TOOLCHAIN_[A-Z_]+)=", text)} <= session.SWITCHES


@pytest.mark.parametrize(
    "name",
    [
        *("TOOLCHAIN_DEVICES", "TOOLCHAIN_BOARDS", "TOOLCHAIN_CACHE", "TOOLCHAIN_SSH_PASSWORD", "TOOLCHAIN_NEW"),
        *("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "SSH_AUTH_SOCK", "SSH_ASKPASS", "DOCKER_CONTEXT"),
        *("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "DASK_CONFIG", "LG_COORDINATOR", "LG_PLACE", "ANDROID_SERIAL"),
        *("ADB_SERVER_SOCKET", "ANDROID_ADB_SERVER_PORT", "TVM_NDK_CC", "DBUS_SESSION_BUS_ADDRESS", "MAKEFLAGS"),
    ],
)
def test_what_says_something_of_the_user_is_left_out(name):
    assert name not in session.environment({name: "theirs"}, Path("/session"), [])


def test_what_is_chosen():
    theirs = {
        "HOME": "/home/me",
        "XDG_RUNTIME_DIR": "/run/user/1",
        "TMPDIR": "/home/me/tmp",
        "PATH": "/bin",
        "LC_ALL": "C",
    }
    chosen = session.environment(theirs | {"TOOLCHAIN_STRICT": "1"}, Path("/session"), [Path("/home/me")])
    assert chosen["HOME"] == "/session/home"
    assert chosen["XDG_RUNTIME_DIR"] == "/session/run"
    assert chosen["TMPDIR"] == "/session/tmp"
    assert (chosen["PATH"], chosen["LC_ALL"], chosen["TOOLCHAIN_STRICT"]) == ("/bin", "C", "1")
    assert chosen[session.REAL_HOMES] == "/home/me"


@pytest.mark.parametrize(("engine", "passed_on"), [("unix:///run/user/1/docker.sock", True), ("ssh://me@lab", False)])
def test_only_an_engine_of_this_machine_is_asked(engine, passed_on):
    assert ("DOCKER_HOST" in session.environment({"DOCKER_HOST": engine}, Path("/session"), [])) is passed_on
