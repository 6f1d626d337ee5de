"""The threads that run kernels, under the thread sanitizer, with tasks that are delayed at random."""

from __future__ import annotations

import subprocess

import pytest

from tests.support.paths import DATA
from toolchain import resources

JOBS = 10_000


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_every_piece_is_computed_once(sanitizer, tmp_path):
    """The same bits for any number of threads; nobody waits for a worker that is stopped; idle threads use no CPU."""
    folder = resources.RUNTIME / "threads"
    ffi_folder = resources.package_folder("tvm_ffi")
    program = tmp_path / "pieces"
    sources = [DATA / "threads" / "pieces.cc", folder.parent / "memory" / "workspaces.cc"]
    sources += [folder / f"{name}.cc" for name in ("launcher", "neighbours", "pool", "shared_pools", "task_queue")]
    command = ["g++", "-std=c++17", "-g", "-O1", f"-fsanitize={sanitizer}", "-fno-sanitize=vptr", f"-I{folder}"]
    command += [f"-isystem{folder}" for folder in (ffi_folder / "include", resources.package_folder("tvm") / "include")]
    command += [*map(str, sources), f"-L{ffi_folder / 'lib'}", "-ltvm_ffi"]
    subprocess.run([*command, f"-Wl,-rpath,{ffi_folder / 'lib'}", "-lpthread", "-o", program], check=True)
    completed = subprocess.run([program, str(JOBS)], check=False, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")
