"""What a real bash completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import toolchain
from toolchain.models import zoo

BIN = Path(sys.executable).parent
DEVICES = """
[bench]
board = "rpi4"
host = "pi@192.0.2.7"
[shelf]
board = "pynq"
host = "me@192.0.2.8"
"""


@pytest.fixture
def complete(tmp_path):
    """Return what bash offers for the last of some words."""
    (tmp_path / "devices.toml").write_text(DEVICES)
    variables = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "TOOLCHAIN_CACHE": str(tmp_path),
    }

    def completed(*arguments: str) -> set[str]:
        line = " ".join(f"'{argument}'" for argument in ("toolchain", *arguments))
        script = f". <(toolchain completion bash)\nCOMP_WORDS=({line})\nCOMP_CWORD={len(arguments)}\n"
        script += '_toolchain_completion toolchain\nprintf "%s\\n" "${COMPREPLY[@]}"'
        process = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True, timeout=60
        )
        return set(process.stdout.split())

    return completed


def test_commands_and_options(complete):
    assert {"deploy", "build", "completion"} <= complete("")
    assert "--board" in complete("deploy", "--bo")


def test_boards(complete):
    assert complete("deploy", "mlp", "--board", "rpi") == {"rpi-zero2w", "rpi3b", "rpi4", "rpi5"}
    assert complete("doctor", "--board", "rpi") == {"rpi-zero2w", "rpi3b", "rpi4", "rpi5"}


def test_hosts_are_those_of_the_lab_and_of_the_board(complete):
    assert complete("status", "--host", "") == {"bench", "shelf"}
    assert complete("status", "--board", "pynq", "--host", "") == {"shelf"}


@pytest.mark.parametrize("command", ["build", "deploy", "tune", "compare", "tasks", "quantize", "survey"])
def test_models(complete, command):
    assert complete(command, "squeeze") == {name for name in zoo.NAMES if name.startswith("squeeze")}


def test_it_waits_for_nothing_heavy():
    code = (
        "import sys, toolchain.cli\n"
        "try: toolchain.cli.main()\n"
        "except SystemExit: print(sorted({m.split('.')[0] for m in sys.modules}), file=sys.stderr)\n"
    )
    variables = {"COMP_WORDS": "toolchain deploy squeeze", "COMP_CWORD": "2", "_TOOLCHAIN_COMPLETE": "bash_complete"}
    completed = subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.argv[0] = 'toolchain'\n{code}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "squeezenet" in completed.stdout
    assert not [name for name in ("numpy", "onnx", "tvm", "paramiko", "rich") if f"'{name}'" in completed.stderr]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_told_how(shell):
    result = toolchain("completion", shell)
    assert (result.code, result.out.splitlines()[0].startswith("# ")) == (0, True)
    assert "_TOOLCHAIN_COMPLETE" in result.out
