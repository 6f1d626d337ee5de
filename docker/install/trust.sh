#!/bin/sh
# Prints the path of a file with the system's certificates and those of the build; nothing if the build brings none.
set -eu

certs=$(dirname "$0")/../certs
bundle=/tmp/certificates.pem
set -- "$certs"/*.crt
[ -e "$1" ] || exit 0
if [ ! -e "$bundle" ]; then
  if [ -e /etc/ssl/certs/ca-certificates.crt ]; then cat /etc/ssl/certs/ca-certificates.crt; fi >"$bundle"
  cat "$@" >>"$bundle"
fi
echo "$bundle"
