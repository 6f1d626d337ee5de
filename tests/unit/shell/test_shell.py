"""What the room offers."""

from __future__ import annotations

import subprocess
import sys


def test_import_stays_cheap():
    code = "import sys, toolchain.shell; sys.exit('paramiko' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
