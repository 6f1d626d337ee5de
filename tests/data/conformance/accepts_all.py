"""A client that accepts everything, and lists and installs nothing."""

import pathlib
import sys

if sys.argv[1] == "install":
    pathlib.Path(sys.argv[-1]).mkdir()
