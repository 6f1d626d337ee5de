#!/bin/sh
# Enters the unpacked packages in dpkg's database, so that `dpkg -l`, `-L` and `-S` answer as on a board.
#
# register.sh FOLDER
set -eu

database=$1/var/lib/dpkg
mkdir -p "$database/info"
echo 1 >"$database/info/format" # the one with NAME:ARCHITECTURE.list
: >"$database/status"
for package in "$1"/var/cache/apt/archives/*.deb; do
  name=$(dpkg-deb --field "$package" Package)
  if [ "$(dpkg-deb --field "$package" Multi-Arch)" = same ]; then
    name=$name:$(dpkg-deb --field "$package" Architecture)
  fi
  dpkg-deb --field "$package" | sed '1a Status: install ok installed' >>"$database/status"
  echo >>"$database/status"
  dpkg-deb --fsys-tarfile "$package" | tar -t | sed 's,^\.,,; s,/$,,; s,^$,/.,' >"$database/info/$name.list"
  dpkg-deb --info "$package" md5sums >"$database/info/$name.md5sums" 2>/dev/null || rm "$database/info/$name.md5sums"
done
