#!/bin/sh
# Mender's update module `edge-toolchain`: applies what `toolchain package --as mender` writes. It belongs into
# /usr/share/mender/modules/v3, executable. Options for every update, such as `--user NAME` or `--root DIR`, are the words
# of /etc/mender/edge-toolchain, if that is there. Mender starts it in the folder of its File API, with a state's name.
set -uf

update() {
  options=
  [ ! -f /etc/mender/edge-toolchain ] || options=$(cat /etc/mender/edge-toolchain)
  sh files/update.run $options "$@"
}

case ${1-} in
  SupportsRollback) echo Yes ;;
  NeedsArtifactReboot) echo No ;;
  ArtifactInstall)
    update --check --json >tmp/before || exit # what the device runs before: a power cut may come
    sync
    update
    ;;
  ArtifactRollback)
    release=$(sed -n 's/.*"release": "\([^"]*\)".*/\1/p' tmp/before 2>/dev/null)
    before=$(sed -n 's/.*"before": "\([^"]*\)".*/\1/p' tmp/before 2>/dev/null)
    if [ -n "$release" ] && [ "$release" = "$before" ]; then
      exit 0 # the device ran it before
    fi
    update --rollback
    ;;
esac
