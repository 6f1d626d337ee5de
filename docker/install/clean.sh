#!/bin/sh
# Removes what an installation leaves behind and nothing needs.
set -eu

rm -rf /tmp/* /var/tmp/* /var/cache/apt/* /var/lib/apt/lists/* /var/log/* /var/cache/ldconfig/* \
  /var/cache/debconf/*-old /var/lib/dpkg/*-old
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
