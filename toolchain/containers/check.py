"""Checks that an image can compile, and can do nothing else, under the restrictions of every build."""

from __future__ import annotations

import json
import os
import shlex
from functools import partial
from pathlib import Path
from typing import Protocol

from elftools.elf.elffile import ELFFile

from toolchain import architecture, process, temporary
from toolchain.checks import Check, Outcome
from toolchain.containers.recipe import Recipe
from toolchain.errors import BuildError

SBOM = "/usr/share/edge-toolchain/sbom.spdx.json"  # in an image, the list of its packages

_NEEDED = "libstdc++.so.6"
_SOURCE = "#include <string>\nstd::string Twice(const std::string& text) { return text + text; }\n"
# An address that no network may have (RFC 5737).
_NOWHERE = "192.0.2.1/9"
_TIMEOUT_S = 120.0


class Runner(Protocol):
    """Runs a command in the image, which can write only to the given folder; any exit code is a result."""

    def __call__(self, argv: list[str], folder: Path | None = None, /) -> process.Result: ...


def checks(recipe: Recipe, run: Runner) -> tuple[Outcome, ...]:
    """Run all checks; one that cannot run has not passed."""
    with temporary.folder() as name:
        folder = Path(name).resolve()
        steps = (
            Check("the compiler runs", partial(_version, recipe, run)),
            Check(f"it compiles for {recipe.triple}", partial(_library, recipe, run, folder)),
            Check("files belong to the calling user", partial(_owner, run, folder)),
            Check("the file system is read-only", partial(_read_only, run)),
            Check("there is no network", partial(_offline, run)),
            Check("there are no capabilities", partial(_powerless, run)),
            Check("the image lists its packages", partial(_inventory, recipe, run)),
        )
        return tuple(step.outcome() for step in steps)


def _observed(observation: str, *, passed: bool) -> str:
    if not passed:
        raise BuildError(observation)
    return observation


def _version(recipe: Recipe, run: Runner) -> str:
    result = run([recipe.compiler, "--version"])
    line = (result.stdout or result.stderr).partition("\n")[0]
    return _observed(line, passed=result.returncode == 0 and recipe.compiler.rpartition("/")[2] in line)


def _library(recipe: Recipe, run: Runner, folder: Path) -> str:
    source, library = folder / "twice.cc", folder / "libtwice.so"
    source.write_text(_SOURCE, encoding="utf-8")
    argv = [recipe.compiler, "-std=c++17", "-shared", "-fPIC", "-o", str(library), str(source)]
    result = run(argv, folder)
    if result.returncode != 0 or not library.is_file():
        raise BuildError(process.tail(result.stderr, 3) or "no file was written")
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        machine = str(elf["e_machine"])
        dynamic = elf.get_section_by_name(".dynamic")
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []
    expected = architecture.of_triple(recipe.triple).elf_machine
    return _observed(f"{machine}, needs {', '.join(needed)}", passed=machine == expected and _NEEDED in needed)


def _owner(run: Runner, folder: Path) -> str:
    target = folder / "owned"
    result = run(["sh", "-c", f"touch {shlex.quote(str(target))} && id -u"], folder)
    if result.returncode != 0:
        raise BuildError(result.stderr.strip())
    status = target.stat()
    observation = f"user {status.st_uid}, group {status.st_gid}; inside {result.stdout.strip()}"
    return _observed(observation, passed=(status.st_uid, status.st_gid) == (os.getuid(), os.getgid()))


def _read_only(run: Runner) -> str:
    result = run(["sh", "-c", "cat /proc/mounts; touch /written /usr/written /var/tmp/written"])
    root = next((line.split() for line in result.stdout.splitlines() if line.split()[1] == "/"), ["", "", "", ""])
    refused = result.stderr.count("Read-only file system")
    is_read_only = "ro" in root[3].split(",") and refused == 3  # noqa: PLR2004 - of three attempts
    return _observed(result.stderr.strip().replace("\n", "; "), passed=is_read_only)


def _offline(run: Runner) -> str:
    result = run(["bash", "-c", f"tail -n +3 /proc/net/dev; exec 3<>/dev/tcp/{_NOWHERE}"])
    interfaces = {line.partition(":")[0].strip() for line in result.stdout.splitlines()}
    unreachable = "Network is unreachable" in result.stderr
    observation = f"{', '.join(sorted(interfaces))}; {result.stderr.strip().rpartition(': ')[2]}"
    # Not "no interfaces": kernels give every network their tunnel devices, which are down.
    return _observed(observation, passed="eth0" not in interfaces and unreachable)


def _powerless(run: Runner) -> str:
    text = run(["cat", "/proc/self/status"]).stdout
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    values = {name: fields.get(name, "") for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs")}
    observation = " ".join(f"{name}={value}" for name, value in values.items())
    privileges = values.pop("NoNewPrivs")
    is_powerless = privileges == "1" and all(value and int(value, 16) == 0 for value in values.values())
    return _observed(observation, passed=is_powerless)


def _inventory(recipe: Recipe, run: Runner) -> str:
    result = run(["cat", SBOM])
    try:
        packages = json.loads(result.stdout)["packages"]
        versions = {entry["name"]: entry.get("versionInfo", "") for entry in packages}
    except (ValueError, KeyError, TypeError) as fault:
        raise BuildError(result.stderr.strip() or f"{SBOM} is not valid SPDX") from fault
    package = "g++" if "g++" in versions else f"g++-{recipe.triple}"
    observation = f"{len(versions)} packages, {package} {versions.get(package, 'missing')}"
    return _observed(observation, passed=package in versions)
