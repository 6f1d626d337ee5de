"""What the Makefile takes on its command line, and what it refuses before anything is installed or run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make as a person does: `make test` leaves its own options and level in the environment of its children."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    argv = ["make", "--dry-run", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("board=rpi4", "there is no variable board (did you mean BOARD=?)"),
        ("HOSTS=pi@10.0.0.7", "there is no variable HOSTS (did you mean HOST=?)"),
        ("MODLE=mlp", "there is no variable MODLE (did you mean MODEL=?)"),
        ("colour=red", "there is no variable colour; the variables are BOARD HOST MODEL BASE"),
        ("bo'ard=rpi4", "there is no variable bo'ard (did you mean BOARD=?)"),
    ],
)
def test_a_variable_that_nothing_reads_is_refused_before_the_setup(assignment, message, tmp_path):
    completed = make("deploy", assignment, f"VENV={tmp_path}/none")
    assert completed.returncode == 2
    assert message in completed.stderr
    assert completed.stdout == ""


def test_every_strange_variable_is_named():
    errors = make("deploy", "board=rpi4", "HOSTS=a").stderr
    assert "did you mean BOARD=?" in errors
    assert "did you mean HOST=?" in errors


def test_the_variables_of_the_project_and_the_usual_ones_are_taken():
    ours = ["BOARD=rpi4", "HOST=pi@10.0.0.7", "MODEL=mlp", "TRIALS=3", "ARGS=--budget 1"]
    completed = make(
        "deploy", *ours, "SHELL=/bin/sh", "TOOLCHAIN_CACHE=/var/cache", "PIP_PROXY=x", "https_proxy=y", "-j2"
    )
    assert completed.returncode == 0, completed.stderr
    assert 'deploy "mlp" --board "rpi4" --host "pi@10.0.0.7" --trials "3" --budget 1' in completed.stdout


def test_a_run_takes_an_input_and_an_output_or_other_words():
    completed = make("run", "BOARD=rpi4", "HOST=pi@10.0.0.7", "INPUT=x.npz", "OUTPUT=y.npz")
    assert 'run --board "rpi4" --host "pi@10.0.0.7" --input "x.npz" --output "y.npz"' in completed.stdout, (
        completed.stderr
    )
    pictures = make("run", "ARGS=--image in/").stdout
    assert "--board" not in pictures
    assert '--output "outputs.npz" --image in/' in pictures
    assert "--input" not in pictures


def test_a_gate_takes_both_packages():
    completed = make("gate", "MODEL=new.tar", "BASE=old.tar", "HOST=pi@10.0.0.7")
    assert 'gate "new.tar" --base "old.tar"  --host "pi@10.0.0.7"' in completed.stdout, completed.stderr


def test_the_environment_may_hold_anything(monkeypatch):
    monkeypatch.setenv("board", "rpi4")
    assert make("deploy").returncode == 0


# Stands for Python and for pip in its venv: it says what pip says; `make setup` itself is the first step of .ci/run.
PYTHON = """#!/bin/sh
case "$*" in
  *"-m venv"*) for folder; do :; done; mkdir -p "$folder/bin"; cp "$0" "$folder/bin/python";;
  *requirements.lock*)
    echo "Ignoring colorama: markers 'sys_platform == \\"win32\\"' don't match your environment"
    echo "Collecting cmake==4.4.4 (from -r requirements.lock (line 9))"
    echo "  Downloading cmake-4.4.4-py3-none-any.whl.metadata (6 kB)"
    echo "  Downloading cmake-4.4.4-py3-none-any.whl (30.2 MB)"
    echo "  Using cached click-8.5.1-py3-none-any.whl (126 kB)"
    echo "Installing collected packages: click, cmake"
    exit "$CODE";;
esac
"""


@pytest.mark.parametrize("code", [0, 1])
def test_setup_says_how_far_it_is_and_ends_as_pip_does(tmp_path, code):
    python, listed = tmp_path / "python", re.findall(r"^\S+==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    all_of_them = len(listed) - 1
    python.write_text(PYTHON)
    python.chmod(0o755)
    command = ["make", "setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
    variables = {"PATH": "/usr/bin:/bin", "CODE": str(code)}
    completed = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert completed.returncode == (2 if code else 0), completed.stderr
    assert completed.stdout.splitlines()[1:4] == [
        f"  1 of {all_of_them}  cmake-4.4.4-py3-none-any.whl (30.2 MB)",
        f"  2 of {all_of_them}  click-8.5.1-py3-none-any.whl (126 kB)",
        "  unpacking them",
    ]
    assert "GB of disk space" in completed.stdout.splitlines()[0]
    assert (tmp_path / "venv" / ".ready").exists() == (code == 0)


def test_the_quick_tests_are_some_of_all_of_them():
    quick, everything = (make(target).stdout for target in ("test", "test-all"))
    assert f"--numprocesses {len(os.sched_getaffinity(0)) + 2} " in everything
    assert "--numprocesses 1 " in make("test", "WORKERS=1").stdout
    assert quick.replace(" --quick", "") == everything
    assert quick != everything


QUICK = """
import pytest

def test_short():
    pass

@pytest.mark.long
def test_long():
    raise AssertionError
"""


def test_what_a_quick_run_leaves_out_is_its_last_line(tmp_path):
    (tmp_path / "integration").mkdir()
    (tmp_path / "integration" / "test_other.py").write_text("raise AssertionError('it is not even imported')\n")
    (tmp_path / "test_some.py").write_text(QUICK)
    command = [sys.executable, "-m", "pytest", "-q", "--quick", "--rootdir", ROOT, "-c", ROOT / "pyproject.toml"]
    command += ["--confcutdir", ROOT, "-p", "tests.conftest", "-p", "no:cacheprovider", tmp_path]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "1 passed, 1 deselected" in completed.stdout
    assert completed.stdout.splitlines()[-1] == (
        "left out: tests/integration, tests marked `long`, and most of the cases of a kernel (make test-all)"
    )
