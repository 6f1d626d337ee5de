#!/bin/sh
# Compiles Python's modules for a read-only file system: to files that carry no time and are never checked against one.
#
# compile.sh FOLDER...
set -eu

find "$@" -name __pycache__ -prune -exec rm -rf {} +
# Some packages ship templates and tests that are no Python; they are left uncompiled.
PYTHONHASHSEED=0 python3 -m compileall -qq --invalidation-mode unchecked-hash "$@" || true
