"""What others copy into their CI: its keys are those that there are, and its steps run, on this machine as a board."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from tests.support import junit
from tests.support.paths import ROOT
from tests.support.two_boards import PLUGIN
from tests.support.wheels import wheel_of
from toolchain import __version__, bundle

GITHUB, GITLAB = ROOT / "ci/github/action.yml", ROOT / "ci/gitlab/toolchain.yml"
_ACTION = {"name", "description", "inputs", "outputs", "runs"}
_STEP = {"name", "id", "if", "shell", "env", "run", "uses", "with"}
_JOB = {
    *("image", "variables", "resource_group", "interruptible", "allow_failure", "before_script", "script", "artifacts"),
}


@pytest.fixture
def environment(tmp_path):
    """A virtual environment whose dependencies are installed already; pip runs in it and asks no index."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return tmp_path / "venv" / "bin"


@pytest.fixture
def sandbox(tmp_path):
    """A folder of a job, with `toolchain` and `python3 -m pip` in its path."""
    tools = tmp_path / "bin"
    tools.mkdir()
    run = "import sys; from toolchain.cli import main; sys.argv[0] = 'toolchain'; main()"
    (tools / "toolchain").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{run}" "$@"\n')
    (tools / "python3").write_text('#!/bin/sh\necho "$@" >>installed\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    return tmp_path


def run(sandbox: Path, script: str, shell: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{sandbox / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GITHUB_OUTPUT": str(sandbox / "output"),
        **variables,
    }
    return subprocess.run(
        [*shell, script], cwd=sandbox, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def check_reports(sandbox: Path, *names: str) -> None:
    for name in names:
        suite = ET.parse(sandbox / "toolchain-report" / name).getroot()  # noqa: S314 - of a test of ours
        assert junit.faults(suite) == []


BASH, SH = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c"], ["sh", "-ec"]
"""As a runner of GitHub, and one of GitLab, start the steps."""


def check_installed(environment: Path, install: str, shell: list[str], **variables: str) -> None:
    """Run a template's step of installation, and the `toolchain` that it installed."""
    completed = subprocess.run(
        [*shell, install],
        cwd=environment.parent.parent,
        env={**os.environ, **variables, "PATH": f"{environment}:{os.environ['PATH']}", "PIP_NO_INDEX": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout + completed.stderr
    version = subprocess.run([environment / "toolchain", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.split()[-1] == __version__
    assert list(environment.parent.glob("lib/python*/site-packages/toolchain/_data/README.md"))


def github() -> dict:
    return yaml.safe_load(GITHUB.read_text(encoding="utf-8"))


def given_to(step: dict, inputs: dict[str, str]) -> dict[str, str]:
    """Return the environment of a step for inputs of the action."""
    expression = re.compile(r"\$\{\{ inputs\.([a-z-]+) \}\}")
    return {name: inputs[expression.fullmatch(value)[1]] for name, value in step.get("env", {}).items()}


def test_the_action_has_the_keys_that_github_knows():
    action = github()
    assert action.keys() == _ACTION
    assert action["runs"]["using"] == "composite"
    for step in action["runs"]["steps"]:
        assert step.keys() <= _STEP
        assert ("run" in step) == ("shell" in step) != ("uses" in step)
        assert "${{" not in step.get("run", "")  # nobody's input becomes a part of a script
    inputs_used = set(re.findall(r"inputs\.([a-z-]+)", GITHUB.read_text(encoding="utf-8")))
    assert inputs_used == action["inputs"].keys()
    assert all(entry.keys() <= {"description", "required", "default"} for entry in action["inputs"].values())


def test_the_action_installs_the_checkout_that_it_is_part_of(environment):
    install = github()["runs"]["steps"][0]
    inputs = {name: str(entry.get("default", "")) for name, entry in github()["inputs"].items()}
    variables = given_to(install, inputs)
    check_installed(environment, install["run"], BASH, **variables, GITHUB_ACTION_PATH=str(GITHUB.parent))


def test_the_template_installs_a_wheel(environment, tmp_path):
    job = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))[".toolchain"]
    requirement = str(wheel_of(ROOT, tmp_path / "dist").relative_to(tmp_path))
    check_installed(environment, "\n".join(job["before_script"]), SH, REQUIREMENT=requirement)


def steps_that_install() -> dict[str, tuple[str, list[str]]]:
    job = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))[".toolchain"]
    return {
        "github": (github()["runs"]["steps"][0]["run"], BASH),
        "gitlab": ("\n".join(job["before_script"]), SH),
    }


@pytest.mark.parametrize("template", ["github", "gitlab"])
@pytest.mark.parametrize(
    "requirement",
    ["edge-toolchain", "edge-toolchain==0.1", "missing.whl", "https://host/x.whl", "http://host/x.whl#sha256=00"],
)
def test_what_an_index_would_answer_is_not_installed(sandbox, template, requirement):
    """A name is whoever's registers it first, and an address without a digest is whatever it has today."""
    script, shell = steps_that_install()[template]
    completed = run(sandbox, script, shell, REQUIREMENT=requirement)
    assert completed.returncode == 2
    assert requirement in completed.stdout + completed.stderr
    assert not (sandbox / "installed").exists()


@pytest.mark.parametrize("template", ["github", "gitlab"])
def test_an_address_with_a_digest_is_installed_as_it_is(sandbox, template):
    script, shell = steps_that_install()[template]
    address = "https://host/edge_toolchain-0.1.0-py3-none-any.whl#sha256=" + "0" * 64
    assert run(sandbox, script, shell, REQUIREMENT=address).returncode == 0
    assert (sandbox / "installed").read_text() == f"-m pip install --quiet {address}\n"


def test_a_job_must_say_what_it_installs(sandbox):
    script, shell = steps_that_install()["gitlab"]
    assert run(sandbox, script, shell, REQUIREMENT="").returncode == 2
    assert not (sandbox / "installed").exists()


def test_the_action_runs(sandbox, tiny):
    action = github()
    inputs = {name: str(description.get("default", "")) for name, description in action["inputs"].items()}
    inputs |= {"package": str(tiny.folder), "board": "local", "wait": "100"}
    deploy = action["runs"]["steps"][2]
    completed = run(sandbox, deploy["run"], BASH, **given_to(deploy, inputs))
    assert completed.returncode == 0, completed.stderr
    check_reports(sandbox, "deploy.xml")


@pytest.mark.parametrize(
    ("code", "ends", "verdict"),
    [(0, 0, "pass"), (7, 0, "inconclusive"), (6, 6, "regression"), (5, 5, "wrong"), (75, 75, "")],
)
def test_the_action_says_what_the_gate_found(sandbox, code, ends, verdict):
    (sandbox / "bin" / "toolchain").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >words\nexit {code}\n')
    gate = github()["runs"]["steps"][1]
    inputs = {"package": "new.tar", "base": "old $(touch x).tar", "board": "rpi4", "host": "me@x", "wait": "9"}
    inputs |= {"ssh-key": "secret", "known-hosts": "x ssh-ed25519 A"}
    completed = run(sandbox, gate["run"], BASH, **given_to(gate, inputs))
    assert completed.returncode == ends, completed.stderr
    assert (sandbox / "output").read_text() == f"verdict={verdict}\n"
    assert ("::warning::" in completed.stdout) == (code == 7)
    arguments = (sandbox / "words").read_text().splitlines()
    assert arguments[:8] == ["gate", "new.tar", "--base", "old $(touch x).tar", "--board", "rpi4", "--wait", "9"]
    assert arguments[8:10] == ["--host", "me@x"]
    assert not Path(arguments[arguments.index("--identity") + 1]).exists()


def test_the_template_has_the_keys_that_gitlab_knows():
    template = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))
    assert template.keys() == {".toolchain"}
    job = template[".toolchain"]
    assert job.keys() == _JOB
    assert job["allow_failure"] == {"exit_codes": [7]}
    assert job["resource_group"] == "$BOARD"
    assert job["artifacts"] == {
        "when": "always",
        "paths": ["toolchain-report"],
        "reports": {"junit": "toolchain-report/*.xml"},
    }


@pytest.mark.parametrize(("base", "code"), [("", 0), ("same", 2)])
def test_the_template_runs(sandbox, tiny, base, code):
    """A gate of a package against itself is refused, which shows that it is asked for."""
    job = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))[".toolchain"]
    variables = {**job["variables"], "PACKAGE": str(tiny.folder), "BOARD": "local", "WAIT": "100"}
    variables["REQUIREMENT"] = str(ROOT)
    variables["BASE"] = str(tiny.folder) if base else ""
    completed = run(sandbox, "\n".join([*job["before_script"], *job["script"]]), SH, **variables)
    assert completed.returncode == code, completed.stderr
    check_reports(sandbox, "gate.xml" if base else "deploy.xml")
    assert (sandbox / "toolchain-report" / "deploy.xml").exists() == (not base)


@pytest.mark.parametrize("code", [0, 5, 6, 7, 75])
def test_what_does_not_pass_the_gate_is_not_deployed(sandbox, code):
    """A release that is current on the board would be its own base the next time."""
    (sandbox / "bin" / "toolchain").write_text(f'#!/bin/sh\necho "$1" >>words\n[ "$1" != gate ] || exit {code}\n')
    job = yaml.safe_load(GITLAB.read_text(encoding="utf-8"))[".toolchain"]
    variables = {**job["variables"], "PACKAGE": "new.tar", "BOARD": "rpi4", "BASE": "current"}
    variables["REQUIREMENT"] = str(ROOT)
    completed = run(sandbox, "\n".join([*job["before_script"], *job["script"]]), SH, **variables)
    assert completed.returncode == code
    assert (sandbox / "words").read_text().split() == (["gate"] if code else ["gate", "deploy"])
    names = [step["name"] for step in github()["runs"]["steps"]]
    assert names.index("Gate") < names.index("Deploy")
    condition = github()["runs"]["steps"][names.index("Deploy")]["if"]
    assert condition == "inputs.base == '' || steps.gate.outputs.verdict == 'pass'"


def test_the_projects_of_the_documentation_run(tmp_path, tiny):
    """The example of docs/ci.md, as it stands there, on this machine."""
    page = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```python\n# test_model\.py\n(.*?)```", page, re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    (tmp_path / "test_model.py").write_text(example)
    bundle.pack(tiny, tmp_path / "new.tar")
    argv = [sys.executable, "-m", "pytest", "-p", PLUGIN, "-p", "no:cacheprovider", "--junitxml", "report.xml"]
    completed = subprocess.run(
        [*argv, "--package", "new.tar", "--wait", "100", "--budget", "0.1"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stdout
    assert "3 passed" in completed.stdout
    assert junit.faults(ET.parse(tmp_path / "report.xml").getroot()) == []  # noqa: S314
