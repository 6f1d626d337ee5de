#!/bin/sh
# Makes a Debian base image where no registry can be reached: the same image whenever it is made from the same packages.
# Needs mmdebstrap and a Docker engine; runs as root, or as a user who may unshare.
#
# base.sh TAG [MIRROR]
#   MIRROR             address above debian/ and debian-security/; mmdebstrap's own without it
#   SOURCE_DATE_EPOCH  the time of every file in it
#   TOOLCHAIN_DOCKER   the docker command
set -eu

tag=${1:?usage: base.sh TAG [MIRROR]}
mirror=${2:-}
mirror=${mirror%/}
mirror=${mirror%/debian}
suite=bookworm
export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-1766966400}"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 130' INT TERM

if [ -n "$mirror" ]; then
  cat >"$folder/sources.list" <<END
deb $mirror/debian $suite main
deb $mirror/debian $suite-updates main
deb $mirror/debian-security $suite-security main
END
fi

# mmdebstrap clamps times and sorts; what is removed here is written anew on every machine.
mmdebstrap --quiet --variant=minbase --include=ca-certificates --format=tar \
  --customize-hook='rm -f "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/etc/machine-id' \
  --customize-hook='rm -f "$1"/var/cache/ldconfig/aux-cache' \
  --customize-hook='rm -rf "$1"/var/log/* "$1"/var/cache/debconf/*-old "$1"/var/lib/dpkg/*-old' \
  "$suite" "$folder/base.tar" ${mirror:+"$folder/sources.list"}

"${TOOLCHAIN_DOCKER:-docker}" import --change 'CMD ["bash"]' "$folder/base.tar" "$tag"
sha256sum "$folder/base.tar" | cut -d ' ' -f 1
