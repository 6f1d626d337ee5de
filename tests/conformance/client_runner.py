"""The runner of devices as a client: it checks everything, and this copies and lists what it has accepted.

`EDGE_RUNNER` names the program; without it, the toolchain's own for this machine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.conformance import arguments


def runner() -> str:
    if path := os.environ.get("EDGE_RUNNER"):
        return path
    from toolchain import board
    from toolchain.native import programs

    native = board.load("local").resolved()
    return str(programs.build(programs.RUNNER, native.triple, native.machine).path)


def main(argv: Sequence[str]) -> int:
    options = arguments.parse(argv)
    command = [runner(), "--verify", str(options.release), "--trust", str(options.trust)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode != 0:
        sys.stderr.write(completed.stderr)
        return completed.returncode
    document = json.loads((options.release / "oci.json").read_bytes())
    rows = {layer["annotations"]["org.opencontainers.image.title"]: layer["digest"] for layer in document["layers"]}
    if options.command == "list":
        arguments.show({name: digest.removeprefix("sha256:") for name, digest in rows.items()})
    if options.command == "install":
        names = [*rows, "oci.json", "release.signed"]
        with arguments.staging(options.target) as folder:
            for name in names:
                shutil.copyfile(options.release / name, Path(folder) / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
