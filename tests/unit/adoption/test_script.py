"""The script that asks a device what it is, with the shells and tools that devices have."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

import pytest

from tests.support import userlands
from toolchain.adoption import known, script
from toolchain.adoption.answer import Answer
from toolchain.shell import ssh

MOST = 9000  # dropbear takes no longer command
TOKEN = "0123456789abcdef"  # noqa: S105 - it keeps nothing secret


def text(root: str = "~/x/y") -> str:
    return script.text(TOKEN, root, known.accelerators())


def test_it_is_short_enough_for_dropbear():
    assert len(ssh._command(text(), "run")) < MOST - 500  # a long folder is still to be named in it


def test_it_has_no_quotes_that_would_make_it_long():
    assert "'" not in text()


@pytest.mark.parametrize("tools", [None, userlands.busybox, userlands.toybox], ids=["dash", "busybox", "toybox"])
def test_each_user_land_answers_and_keeps_nothing(tools, tmp_path):
    """With the shells and tools of coreutils, busybox and Android."""
    home = tmp_path / "home"
    home.mkdir()
    path = str(tools(tmp_path / "bin")) if tools else os.environ["PATH"]
    shell = shutil.which("sh", path=path)
    done = subprocess.run(
        [shell, "-c", text()], env={"PATH": path, "HOME": str(home)}, capture_output=True, text=True, check=False
    )
    answer = Answer(done.stdout, TOKEN, "here")
    assert (done.returncode, done.stderr) == (0, "")
    assert answer.text("machine") == os.uname().machine
    assert len(answer.cpus) == os.cpu_count()
    assert answer.text("at") == str(home)
    for key in ("writes", "executes", "fills", "links", "switches", "locks"):
        assert answer.text(key) == "yes", (key, done.stdout)
    assert not answer.texts("lacks")
    assert not list(home.iterdir())


def test_a_folder_with_letters_of_the_shell_is_a_folder(tmp_path):
    done = subprocess.run(
        ["sh", "-c", text(f"{tmp_path}/a;touch>b&c")], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert Answer(done.stdout, TOKEN, "here").text("root") == f"{tmp_path}/a;touch>b&c"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    done = subprocess.run(["sh", "-c", text("/proc/nowhere")], capture_output=True, text=True, check=False)
    answer = Answer(done.stdout, TOKEN, "here")
    assert answer.text("at") == "/proc"
    assert not answer.has("writes")
    assert answer.text("writes_not")
    assert shlex.quote("/proc/nowhere") in text("/proc/nowhere")
