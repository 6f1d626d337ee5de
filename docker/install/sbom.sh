#!/bin/sh
# Writes what is in the image as SPDX 2.3: Debian's packages, Python's distributions and the NDK.
#
# sbom.sh IMAGE [SITE_PACKAGES]
#   SOURCE_DATE_EPOCH  the only time in it
set -eu

target=/usr/share/edge-toolchain/sbom.spdx.json
list=/tmp/sbom.list
export LC_ALL=C

{
  dpkg-query -W -f '${db:Status-Abbrev}\t${Package}\t${Version}\t${Architecture}\n' | sed -n 's/^ii */deb/p'
  if [ $# -gt 1 ]; then
    for metadata in "$2"/*.dist-info/METADATA; do
      awk -F ': ' '/^$/ {exit} /^Name: /{name = $2} /^Version: /{version = $2}
        END {print "pypi\t" name "\t" version "\t"}' "$metadata"
    done
  fi
  if [ -e /opt/ndk/source.properties ]; then
    sed -n 's/^Pkg.Revision *= */generic\tandroid-ndk\t/p' /opt/ndk/source.properties
  fi
} | sort >"$list"

mkdir -p "$(dirname "$target")"
awk -F '\t' -v image="$1" \
  -v created="$(date --utc --date "@${SOURCE_DATE_EPOCH:-0}" +%Y-%m-%dT%H:%M:%SZ)" \
  -v digest="$(sha256sum "$list" | cut -d ' ' -f 1)" '
  function quoted(text) { gsub(/[\\"]/, "\\\\&", text); return "\"" text "\"" }
  function escaped(text) { gsub(/%/, "%25", text); gsub(/\+/, "%2B", text); gsub(/:/, "%3A", text); return text }
  function package(id, name, version, url) {
    printf "%s    {\n", separator
    printf "      \"SPDXID\": %s,\n      \"name\": %s,\n", quoted(id), quoted(name)
    if (version != "") printf "      \"versionInfo\": %s,\n", quoted(version)
    if (url != "") {
      printf "      \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", "
      printf "\"referenceType\": \"purl\", \"referenceLocator\": %s}],\n", quoted(url)
    }
    printf "      \"downloadLocation\": \"NOASSERTION\",\n      \"filesAnalyzed\": false,\n"
    printf "      \"licenseConcluded\": \"NOASSERTION\",\n      \"licenseDeclared\": \"NOASSERTION\",\n"
    printf "      \"copyrightText\": \"NOASSERTION\"\n    }"
    separator = ",\n"
  }
  function related(from, type, to, before) {
    printf "%s    {\"spdxElementId\": %s, \"relationshipType\": %s, ", before, quoted(from), quoted(type)
    printf "\"relatedSpdxElement\": %s}", quoted(to)
  }
  BEGIN {
    printf "{\n  \"spdxVersion\": \"SPDX-2.3\",\n  \"dataLicense\": \"CC0-1.0\",\n  \"SPDXID\": \"SPDXRef-DOCUMENT\",\n"
    printf "  \"name\": %s,\n", quoted("edge-toolchain/" image)
    printf "  \"documentNamespace\": %s,\n", quoted("urn:edge-toolchain:sbom:" image ":" digest)
    printf "  \"creationInfo\": {\"created\": %s, \"creators\": [\"Tool: edge-toolchain-sbom\"]},\n", quoted(created)
    printf "  \"packages\": [\n"
    package("SPDXRef-image", "edge-toolchain/" image, "", "")
  }
  {
    id = $2
    gsub(/[^A-Za-z0-9.-]/, "-", id)
    ids[NR] = "SPDXRef-" $1 "-" NR "-" id
    url = "pkg:" $1 "/" ($1 == "deb" ? "debian/" : "") escaped($1 == "pypi" ? tolower($2) : $2) "@" escaped($3)
    if ($4 != "") url = url "?arch=" $4
    package(ids[NR], $2, $3, url)
  }
  END {
    printf "\n  ],\n  \"relationships\": [\n"
    related("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image", "")
    for (i = 1; i <= NR; i++) related("SPDXRef-image", "CONTAINS", ids[i], ",\n")
    printf "\n  ]\n}\n"
  }' "$list" >"$target"
