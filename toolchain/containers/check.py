"""What an image must do and must not be able to do, tried in it under the restrictions that every build runs under."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from elftools.elf.elffile import ELFFile

from toolchain import process, temporary
from toolchain.containers.recipe import Recipe
from toolchain.errors import BuildError

SBOM = "/usr/share/edge-toolchain/sbom.spdx.json"
"""Where an image says what is in it."""

_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64", "arm": "EM_ARM"}
_NEEDED = "libstdc++.so.6"
_SOURCE = "#include <string>\nstd::string Twice(const std::string& text) { return text + text; }\n"
# An address that no network may have (RFC 5737).
_NOWHERE = "192.0.2.1/9"
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Check:
    """One thing that was tried in an image.

    Attributes:
        what: What must hold.
        passed: It does.
        seen: What was seen.
    """

    what: str
    passed: bool
    seen: str


class Runner(Protocol):
    """Runs a command in the image, which can write to a folder if one is named."""

    def __call__(self, words: list[str], folder: Path | None = None) -> process.Result:
        """Run it to its end, whatever its exit code."""


def checks(recipe: Recipe, run: Runner) -> tuple[Check, ...]:
    """Try everything; a check that cannot be carried out has not passed."""
    with temporary.folder() as folder:
        return tuple(_all(recipe, run, Path(folder).resolve()))


def _all(recipe: Recipe, run: Runner, folder: Path) -> Iterator[Check]:
    steps: dict[str, Callable[[], tuple[bool, str]]] = {
        "the compiler runs": lambda: _version(recipe, run),
        f"it compiles for {recipe.triple}": lambda: _library(recipe, run, folder),
        "files belong to the calling user": lambda: _owner(run, folder),
        "the file system is read-only": lambda: _read_only(run),
        "there is no network": lambda: _offline(run),
        "there are no capabilities": lambda: _powerless(run),
        "the image lists its packages": lambda: _inventory(recipe, run),
    }
    for what, step in steps.items():
        try:
            passed, seen = step()
        except BuildError as fault:
            passed, seen = False, fault.message
        yield Check(what, passed, seen)


def _version(recipe: Recipe, run: Runner) -> tuple[bool, str]:
    done = run([recipe.compiler, "--version"])
    line = (done.stdout or done.stderr).partition("\n")[0]
    return done.returncode == 0 and recipe.compiler.rpartition("/")[2] in line, line


def _library(recipe: Recipe, run: Runner, folder: Path) -> tuple[bool, str]:
    source, library = folder / "twice.cc", folder / "libtwice.so"
    source.write_text(_SOURCE, encoding="utf-8")
    words = [recipe.compiler, "-std=c++17", "-shared", "-fPIC", "-o", str(library), str(source)]
    done = run(words, folder)
    if done.returncode != 0 or not library.is_file():
        return False, process.tail(done.stderr, 3) or "no file was written"
    with library.open("rb") as stream:
        elf = ELFFile(stream)
        machine = str(elf["e_machine"])
        dynamic = elf.get_section_by_name(".dynamic")
        needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []
    wanted = _MACHINES.get(recipe.triple.partition("-")[0], "")
    return machine == wanted and _NEEDED in needed, f"{machine}, needs {', '.join(needed)}"


def _owner(run: Runner, folder: Path) -> tuple[bool, str]:
    target = folder / "owned"
    done = run(["sh", "-c", f"touch {shlex.quote(str(target))} && id -u"], folder)
    if done.returncode != 0:
        return False, done.stderr.strip()
    status = target.stat()
    mine = (os.getuid(), os.getgid())
    return (
        status.st_uid,
        status.st_gid,
    ) == mine, f"user {status.st_uid}, group {status.st_gid}; inside {done.stdout.strip()}"


def _read_only(run: Runner) -> tuple[bool, str]:
    done = run(["sh", "-c", "cat /proc/mounts; touch /written /usr/written /var/tmp/written"])
    root = next((line.split() for line in done.stdout.splitlines() if line.split()[1] == "/"), ["", "", "", ""])
    refused = done.stderr.count("Read-only file system")
    return "ro" in root[3].split(",") and refused == 3, done.stderr.strip().replace("\n", "; ")  # noqa: PLR2004


def _offline(run: Runner) -> tuple[bool, str]:
    done = run(["bash", "-c", f"tail -n +3 /proc/net/dev; exec 3<>/dev/tcp/{_NOWHERE}"])
    interfaces = {line.partition(":")[0].strip() for line in done.stdout.splitlines()}
    unreachable = "Network is unreachable" in done.stderr
    # Kernels give every network its tunnel devices, which are down.
    return (
        "eth0" not in interfaces and unreachable,
        f"{', '.join(sorted(interfaces))}; {done.stderr.strip().rpartition(': ')[2]}",
    )


def _powerless(run: Runner) -> tuple[bool, str]:
    text = run(["cat", "/proc/self/status"]).stdout
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    found = {name: fields.get(name, "") for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs")}
    seen = " ".join(f"{name}={value}" for name, value in found.items())
    privileges = found.pop("NoNewPrivs")
    return privileges == "1" and all(value and int(value, 16) == 0 for value in found.values()), seen


def _inventory(recipe: Recipe, run: Runner) -> tuple[bool, str]:
    done = run(["cat", SBOM])
    try:
        packages = json.loads(done.stdout)["packages"]
        versions = {entry["name"]: entry.get("versionInfo", "") for entry in packages}
    except (ValueError, KeyError, TypeError):
        return False, done.stderr.strip() or f"{SBOM} is not valid SPDX"
    package = "g++" if "g++" in versions else f"g++-{recipe.triple}"
    return package in versions, f"{len(versions)} packages, {package} {versions.get(package, 'missing')}"
