#!/bin/sh
# Installs Debian packages from a snapshot, or from a mirror as it is. All settings lie in /tmp, so none of them stays.
#
# apt.sh PACKAGE...
#   DEBIAN_SNAPSHOT  time stamp of the snapshot; empty: the mirror as it is
#   DEBIAN_MIRROR    address above `debian/` and `debian-security/`, instead of the base image's own
set -eu

here=$(dirname "$0")
settings=/tmp/apt
mirror=${DEBIAN_MIRROR:-}
mirror=${mirror%/}
mirror=${mirror%/debian}
at= options= archive=
if [ -n "${DEBIAN_SNAPSHOT:-}" ]; then
  mirror=${mirror:-http://snapshot.debian.org/archive}
  at=/$DEBIAN_SNAPSHOT
  options='[check-valid-until=no] '
fi
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")

mkdir -p "$settings/lists/partial" "$settings/cache/archives/partial" "$settings/log"
if [ -n "$mirror" ]; then
  cat >"$settings/sources.list" <<END
deb $options$mirror/debian$at $suite main
deb $options$mirror/debian$at $suite-updates main
deb $options$mirror/debian-security$at $suite-security main
END
  archive="Dir::Etc::SourceList \"$settings/sources.list\"; Dir::Etc::SourceParts \"/dev/null\";"
fi
cat >"$settings/apt.conf" <<END
$archive
Dir::State::Lists "$settings/lists";
Dir::Cache "$settings/cache";
Dir::Log "$settings/log";
Acquire::Retries "3";
APT::Install-Recommends "false";
APT::Sandbox::User "root";
END
export APT_CONFIG="$settings/apt.conf" DEBIAN_FRONTEND=noninteractive

# Certificates come over http, whose packages apt checks by signature; with them, https works too.
case $mirror in
  https:*)
    bundle=$("$here/trust.sh")
    if [ -n "$bundle" ]; then echo "Acquire::https::CaInfo \"$bundle\";" >>"$APT_CONFIG"; fi
    ;;
esac

# Without an operand, the packages' lists alone are fetched, for others to use APT_CONFIG.
apt-get update -qq
if [ $# -gt 0 ]; then
  apt-get install -qq --yes -o Dpkg::Use-Pty=0 -- "$@" >/tmp/apt.log 2>&1 || { cat /tmp/apt.log >&2; exit 1; }
fi
