#!/bin/sh
# Installs what a hashed lock file names, and nothing it does not name, into a new virtual environment.
#
# pip.sh FOLDER LOCK
#   PIP_INDEX_URL  index of Python packages, instead of pip's own
set -eu

bundle=$("$(dirname "$0")/trust.sh")
if [ -n "$bundle" ]; then export PIP_CERT="$bundle"; fi
python3 -m venv "$1"
"$1/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile \
  --require-hashes --only-binary :all: -r "$2"
