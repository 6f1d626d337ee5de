#!/bin/sh
# RAUC's install handler for what `toolchain package --as rauc` writes: applies the update in the bundle. Options for every
# update, such as `--user NAME` or `--root DIR`, are the words of /etc/rauc/edge-toolchain, if that is there.
set -uf
options=
[ ! -f /etc/rauc/edge-toolchain ] || options=$(cat /etc/rauc/edge-toolchain)
exec sh "$RAUC_BUNDLE_MOUNT_POINT/update.run" $options
