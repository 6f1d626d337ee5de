#!/bin/sh
# Unpacks an Android NDK to /opt/ndk, with a compiler driver /opt/ndk/c++; leaves /opt/ndk empty if none is named.
#
# ndk.sh
#   NDK_ARCHIVE  a zip file in docker/ndk/, or its address
#   NDK_SHA256   its checksum, without which nothing is unpacked
#   NDK_API      Android's API level to compile for
set -eu

here=$(dirname "$0")
mkdir -p /opt/ndk
if [ -z "${NDK_ARCHIVE:-}" ]; then exit 0; fi
if [ -z "${NDK_SHA256:-}" ]; then echo "NDK_SHA256 must name the checksum of $NDK_ARCHIVE" >&2; exit 1; fi

"$here/apt.sh" ca-certificates unzip
case $NDK_ARCHIVE in
  *://*)
    archive=/tmp/ndk.zip
    bundle=$("$here/trust.sh")
    /usr/lib/apt/apt-helper -o "Acquire::https::CaInfo=${bundle:-/etc/ssl/certs/ca-certificates.crt}" \
      download-file "$NDK_ARCHIVE" "$archive" "SHA256:$NDK_SHA256" >&2
    ;;
  *) archive=$here/../ndk/$NDK_ARCHIVE ;;
esac
if ! echo "$NDK_SHA256  $archive" | sha256sum --check --quiet -; then
  echo "$NDK_ARCHIVE is not the archive that NDK_SHA256 names" >&2
  exit 1
fi

mkdir /tmp/ndk
unzip -q "$archive" -d /tmp/ndk
mv /tmp/ndk/*/* /opt/ndk/
driver=toolchains/llvm/prebuilt/linux-x86_64/bin/aarch64-linux-android$NDK_API-clang++
if [ ! -x "/opt/ndk/$driver" ]; then echo "$NDK_ARCHIVE has no $driver" >&2; exit 1; fi
# A link would have the driver look for its files beside the link.
printf '#!/bin/sh\nexec /opt/ndk/%s "$@"\n' "$driver" >/opt/ndk/c++
chmod 755 /opt/ndk/c++
