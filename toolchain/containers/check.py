"""Checks that an image can compile, and can do nothing else, under the restrictions of every build."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from elftools.elf.elffile import ELFFile

from toolchain import architecture, process, temporary
from toolchain.containers.recipe import Recipe
from toolchain.errors import BuildError, InputError

SBOM = "/usr/share/edge-toolchain/sbom.spdx.json"  # in an image, the list of its packages

_NEEDED = "libstdc++.so.6"
_SOURCE = "#include <string>\nstd::string Twice(const std::string& text) { return text + text; }\n"
# An address that no network may have (RFC 5737).
_NOWHERE = "192.0.2.1/9"
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class ImageCheck:
    what: str  # requirement
    passed: bool
    seen: str  # observation


class Runner(Protocol):
    """Runs a command in the image, which can write only to the given folder; any exit code is a result."""

    def __call__(self, argv: list[str], folder: Path | None = None, /) -> process.Result: ...


def checks(recipe: Recipe, run: Runner) -> tuple[ImageCheck, ...]:
    """Run all checks; one that cannot run has not passed."""
    results = []
    with temporary.folder() as name:
        folder = Path(name).resolve()
        steps: dict[str, Callable[[], tuple[bool, str]]] = {
            "the compiler runs": lambda: _version(recipe, run),
            f"it compiles for {recipe.triple}": lambda: _library(recipe, run, folder),
            "files belong to the calling user": lambda: _owner(run, folder),
            "the file system is read-only": lambda: _read_only(run),
            "there is no network": lambda: _offline(run),
            "there are no capabilities": lambda: _powerless(run),
            "the image lists its packages": lambda: _inventory(recipe, run),
        }
        for requirement, step in steps.items():
            try:
                passed, observation = step()
            except (BuildError, InputError) as fault:
                passed, observation = False, fault.message
            results.append(ImageCheck(requirement, passed, observation))
    return tuple(results)


def _version(recipe: Recipe, run: Runner) -> tuple[bool, str]:
    result = run([recipe.compiler, "--version"])
    line = (result.stdout or result.stderr).partition("\n")[0]
    return result.returncode == 0 and recipe.compiler.rpartition("/")[2] in line, line


def _library(recipe: Recipe, run: Runner, folder: Path) -> tuple[bool, str]:
    source, library = folder / "twice.cc", folder / "libtwice.so"
    source.write_text(_SOURCE, encoding="utf-8")
    argv = [recipe.compiler, "-std=c++17", "-shared", "-fPIC", "-o", str(library), str(source)]
    result = run(argv, folder)
    if result.returncode != 0 or not library.is_file():
        return False, process.tail(result.stderr, 3) or "no file was written"
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        machine = str(elf["e_machine"])
        dynamic = elf.get_section_by_name(".dynamic")
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []
    expected = architecture.of_triple(recipe.triple).elf_machine
    return machine == expected and _NEEDED in needed, f"{machine}, needs {', '.join(needed)}"


def _owner(run: Runner, folder: Path) -> tuple[bool, str]:
    target = folder / "owned"
    result = run(["sh", "-c", f"touch {shlex.quote(str(target))} && id -u"], folder)
    if result.returncode != 0:
        return False, result.stderr.strip()
    status = target.stat()
    observation = f"user {status.st_uid}, group {status.st_gid}; inside {result.stdout.strip()}"
    return (status.st_uid, status.st_gid) == (os.getuid(), os.getgid()), observation


def _read_only(run: Runner) -> tuple[bool, str]:
    result = run(["sh", "-c", "cat /proc/mounts; touch /written /usr/written /var/tmp/written"])
    root = next((line.split() for line in result.stdout.splitlines() if line.split()[1] == "/"), ["", "", "", ""])
    refused = result.stderr.count("Read-only file system")
    return "ro" in root[3].split(",") and refused == 3, result.stderr.strip().replace("\n", "; ")  # noqa: PLR2004


def _offline(run: Runner) -> tuple[bool, str]:
    result = run(["bash", "-c", f"tail -n +3 /proc/net/dev; exec 3<>/dev/tcp/{_NOWHERE}"])
    interfaces = {line.partition(":")[0].strip() for line in result.stdout.splitlines()}
    unreachable = "Network is unreachable" in result.stderr
    observation = f"{', '.join(sorted(interfaces))}; {result.stderr.strip().rpartition(': ')[2]}"
    # Not "no interfaces": kernels give every network their tunnel devices, which are down.
    return "eth0" not in interfaces and unreachable, observation


def _powerless(run: Runner) -> tuple[bool, str]:
    text = run(["cat", "/proc/self/status"]).stdout
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    values = {name: fields.get(name, "") for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs")}
    observation = " ".join(f"{name}={value}" for name, value in values.items())
    privileges = values.pop("NoNewPrivs")
    return privileges == "1" and all(value and int(value, 16) == 0 for value in values.values()), observation


def _inventory(recipe: Recipe, run: Runner) -> tuple[bool, str]:
    result = run(["cat", SBOM])
    try:
        packages = json.loads(result.stdout)["packages"]
        versions = {entry["name"]: entry.get("versionInfo", "") for entry in packages}
    except (ValueError, KeyError, TypeError):
        return False, result.stderr.strip() or f"{SBOM} is not valid SPDX"
    package = "g++" if "g++" in versions else f"g++-{recipe.triple}"
    return package in versions, f"{len(versions)} packages, {package} {versions.get(package, 'missing')}"
