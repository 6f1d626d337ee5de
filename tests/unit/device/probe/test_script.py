"""The script that asks a device what it is, with the shells and tools that devices have."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import userlands
from toolchain.device.probe import hardware_tables, script
from toolchain.device.probe.answer import Answer
from toolchain.device.probe.facts import read_facts

TOKEN = "0123456789abcdef"  # noqa: S105 - it keeps nothing secret


def text(root: str = "~/x/y") -> str:
    return script.text(TOKEN, root, hardware_tables.accelerators())


@pytest.mark.parametrize("tools", [None, userlands.busybox, userlands.toybox], ids=["dash", "busybox", "toybox"])
def test_each_user_land_answers_and_keeps_nothing(tools, tmp_path):
    """With the shells and tools of coreutils, busybox and Android."""
    home = tmp_path / "home"
    home.mkdir()
    path = str(tools(tmp_path / "bin")) if tools else os.environ["PATH"]
    shell = shutil.which("sh", path=path)
    completed = subprocess.run(
        [shell, "-c", text()], env={"PATH": path, "HOME": str(home)}, capture_output=True, text=True, check=False
    )
    answer = Answer(completed.stdout, TOKEN, "here")
    assert (completed.returncode, completed.stderr) == (0, "")
    assert answer.text("machine") == os.uname().machine
    assert len(answer.cpus) == os.cpu_count()
    assert answer.text("at") == str(home)
    for key in ("writes", "executes", "fills", "links", "switches", "locks"):
        assert answer.text(key) == "yes", (key, completed.stdout)
    assert not answer.texts("lacks")
    assert not list(home.iterdir())


@pytest.mark.parametrize("tools", [None, userlands.busybox, userlands.toybox], ids=["dash", "busybox", "toybox"])
def test_a_library_that_the_environment_names_is_the_only_one(tools, tmp_path):
    library = tmp_path / "my lib.so"
    library.write_text("clGetPlatformIDs /etc/OpenCL/vendors")
    path = str(tools(tmp_path / "bin")) if tools else os.environ["PATH"]
    for library_name, libraries in (
        (str(library), (str(library),)),
        ("/nowhere/none.so", ()),
        ("/bin/sh", ()),
        ("none.so", ()),
    ):
        answer = answer_with(path, tmp_path, EDGE_OPENCL_LIBRARY=library_name)
        assert answer.texts("library.opencl") == answer.texts("loads.opencl") == libraries, library_name
        assert answer.text("named.opencl") == library_name


def test_drivers_are_where_the_environment_says(tmp_path):
    (tmp_path / "one.icd").touch()
    for vendors in (tmp_path, tmp_path / "one.icd"):
        answer = answer_with(os.environ["PATH"], tmp_path, OCL_ICD_VENDORS=str(vendors), EDGE_OPENCL_DEVICE="Mali")
        assert answer.texts("driver.opencl") == (str(tmp_path / "one.icd"),)
        assert answer.text("choice.opencl") == "Mali"
    assert answer_with(os.environ["PATH"], tmp_path, OCL_ICD_VENDORS="/nowhere").texts("driver.opencl") == ()


def answer_with(path: str, home: Path, **env: str) -> Answer:
    command = [str(shutil.which("sh", path=path)), "-c", text()]
    completed = subprocess.run(
        command, env={"PATH": path, "HOME": str(home), **env}, capture_output=True, text=True, check=True
    )
    return Answer(completed.stdout, TOKEN, "here")


WAITING = """#!/bin/sh
touch "$HOME/../waits"
while [ ! -e "$HOME/../go" ]; do sleep 0.02; done
"""


@pytest.mark.parametrize("sign", [signal.SIGHUP, signal.SIGINT, signal.SIGPIPE, signal.SIGTERM])
@pytest.mark.parametrize("tools", [None, userlands.busybox, userlands.toybox], ids=["dash", "busybox", "toybox"])
def test_an_interruption_leaves_nothing(tools, sign, tmp_path):
    """A connection that is lost ends the script's process group; what it says then goes nowhere."""
    home, path = tmp_path / "home", tools(tmp_path / "bin") if tools else tmp_path / "bin"
    home.mkdir()
    path.mkdir(exist_ok=True)
    (path / "flock").unlink(missing_ok=True)
    (path / "flock").write_text(WAITING)
    (path / "flock").chmod(0o755)
    search_path = str(path) if tools else f"{path}:{os.environ['PATH']}"
    command = [str(shutil.which("sh", path=search_path)), "-c", text()]
    env = {"PATH": search_path, "HOME": str(home)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, start_new_session=True) as process:
        until((tmp_path / "waits").exists)
        assert list(home.iterdir())
        assert process.stdout
        process.stdout.close()
        if sign != signal.SIGPIPE:  # which comes of the next word
            os.killpg(process.pid, sign)
        (tmp_path / "go").touch()
        process.wait(timeout=60)
    assert not list(home.iterdir())


def until(ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_folder_with_letters_of_the_shell_is_a_folder(tmp_path):
    completed = subprocess.run(
        ["sh", "-c", text(f"{tmp_path}/a;touch>b&c")], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert Answer(completed.stdout, TOKEN, "here").text("root") == f"{tmp_path}/a;touch>b&c"
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    completed = subprocess.run(["sh", "-c", text("/proc/nowhere")], capture_output=True, text=True, check=False)
    answer = Answer(completed.stdout, TOKEN, "here")
    assert answer.text("at") == "/proc"
    assert not answer.has("writes")
    assert answer.text("writes_not")
    assert shlex.quote("/proc/nowhere") in text("/proc/nowhere")


# --- the questions of the store --------------------------------------------------------------------------------------


@pytest.mark.parametrize("tools", [None, userlands.busybox, userlands.toybox], ids=["dash", "busybox", "toybox"])
def test_the_store_asks_the_same_questions(tools, tmp_path):
    """What both scripts ask has the same answer, and fewer CPUs are described."""
    path = str(tools(tmp_path / "bin")) if tools else os.environ["PATH"]
    shell, env = str(shutil.which("sh", path=path)), {"PATH": path, "HOME": str(tmp_path)}

    def run(script_text: str) -> Answer:
        command = [shell, "-c", f"set -eu; umask 022; ROOT={shlex.quote(str(tmp_path))}\n{script_text}"]
        completed = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        assert not completed.stderr
        return Answer(completed.stdout, TOKEN, "here")

    answer, full_answer = run(script.facts(TOKEN)), run(f"set +eu\n{text(str(tmp_path))}")
    for key in ("system", "machine", "kernel", "bits", "libc", "android", "cpus", "memory", "lacks", "root"):
        assert answer.texts(key) == full_answer.texts(key), key
    assert (len(answer.cpus), answer.cpus[0]) == (1, full_answer.cpus[0])
    assert not answer.has("thermal")


OLD_KERNEL = "Processor\t: ARMv7 rev 2\nprocessor\t: 0\n\nprocessor\t: 1\n\nFeatures\t: neon\n\nHardware\t: Board\n"
RASPBERRY = "processor\t: 2\nFeatures\t: fp\n\nprocessor\t: 3\nFeatures\t: fp\n\nModel\t\t: Raspberry Pi 4\n"
UNNUMBERED = "Processor\t: ARMv6\nFeatures\t: half vfp\nCPU part\t: 0xb76\n\nHardware\t: BCM2708\n"


@pytest.mark.parametrize(
    ("cpuinfo", "cpu", "features"),
    [
        (OLD_KERNEL, "Board", ("neon",)),
        (RASPBERRY, "Raspberry Pi 4", ("fp",)),
        (UNNUMBERED, "BCM2708", ("half", "vfp")),
        ("processor: 0\nmodel name: A\nflags: a b\n\nprocessor: 1\nmodel name: B\nflags: a\n\n", "A", ("a", "b")),
    ],
)
@pytest.mark.parametrize("tools", [None, userlands.busybox, userlands.toybox], ids=["dash", "busybox", "toybox"])
def test_the_first_cpu_of_each_kernel(tools, cpuinfo, cpu, features, tmp_path):
    path = str(tools(tmp_path / "bin")) if tools else os.environ["PATH"]
    (tmp_path / "cpuinfo").write_text(cpuinfo)
    script_text = script.facts(TOKEN).replace("/proc/cpuinfo", str(tmp_path / "cpuinfo"))
    command = [str(shutil.which("sh", path=path)), "-c", f"ROOT=/\n{script_text}"]
    completed = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, check=True)
    facts = read_facts(Answer(completed.stdout, TOKEN, "here"), "here")
    assert (facts.cpu, facts.cpu_features) == (cpu, features)


def test_cpus_are_not_the_threads_of_openmp(tmp_path):
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "99", "OMP_THREAD_LIMIT": "98"}
    completed = subprocess.run(
        ["/bin/sh", "-c", f"ROOT=/tmp\n{script.facts(TOKEN)}"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert Answer(completed.stdout, TOKEN, "here").number("cpus") == len(os.sched_getaffinity(0))
