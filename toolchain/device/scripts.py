"""The POSIX sh scripts behind `store`; they run in the store's root, with `set -eu`."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Iterable, Mapping

TOOLS = "sha256sum flock ln mv rm cp sync find stat readlink df cut tail ls touch base64"

TRUST = "/etc/edge-toolchain"
"""The folder of a device's trusted keys: kTrustFolder of runtime/trust/trusted.h."""
ASKS = f"{{ [ -e {TRUST}/trusted ] || [ -L {TRUST}/trusted ] || {{ [ -d {TRUST} ] && [ ! -x {TRUST} ]; }}; }}"
"""Shell condition: whether a device accepts signed releases only, or hides that from this login."""

# A folder that is not a store is refused, such as an OCI layout, which also has blobs/: a store has blobs/partial/,
# which is created first, or it is empty. The default store of this machine is the folder of the user's tuning records,
# which may exist before the first deploy; no script touches them.
_LAYOUT = """
if [ ! -d blobs/partial ]; then
  for entry in * blobs/* blobs/sha256/*; do
    case $entry in
      '*' | 'blobs/*' | 'blobs/sha256/*' | lock | lock.* | records | blobs | blobs/sha256) ;;
      *) echo "$ROOT is not a store: it contains $entry; name another folder" >&2; exit 1 ;;
    esac
  done
fi
mkdir -p blobs/partial blobs/sha256 releases runners servers libraries inputs unchecked generations floors run
"""

# Removes what a killed deploy may have left, but nothing that a link points to.
SWEEP = f"""{_LAYOUT}
rm -rf releases/.new-* runners/.new-* servers/.new-* libraries/.new-* inputs/.new-* .trash-* .current-* current_* run/*
rm -f .lib-* lib_* .trial-new .recover-new releases/*/.new-signed
current=$(readlink current || true)
number=${{current#generations/}}
for link in generations/*; do
  [ -L "$link" ] || continue
  if [ "${{link#generations/}}" -gt "${{number:-0}}" ]; then rm -f "$link"; fi
done
"""

# A slot is a folder like a store of its own, whose releases are hard links into the blobs of the store: a toolchain
# that knows nothing of slots counts them as well, and so keeps the blobs. What all slots share are links.
_MAKE_SLOT = f"""{_LAYOUT}
rm -rf .trash-slot
slot=slots/{{slot}}
[ -d "$slot" ] || echo "new slot"
mkdir -p "$slot"
for name in {{shared}}; do
  [ -e "$slot/$name" ] || [ -L "$slot/$name" ] || ln -s "../../$name" "$slot/$name"
  if [ "$(readlink "$slot/$name")" != "../../$name" ]; then
    echo "$ROOT/$slot is not a slot: $name is not a link to ../../$name" >&2; exit 1
  fi
done
"""
_SHARED = "blobs runners servers inputs run lock lock.within"

# An earlier upload is resumed in a copy: a client that lost the lock may wake up and continue to write to its own file,
# even after that file was checked. Files that were about to be published are not writable any more, hence the chmod.
EXAMINE = """
mkdir -p blobs/partial/$token
for digest in {digests}; do
  blob=blobs/sha256/$digest; partial=blobs/partial/$token/$digest
  if [ -f $blob ]; then
    if [ "$(sha256sum <$blob | cut -c 1-64)" = $digest ]; then echo "have $digest 0"
    else rm -f $blob; echo "damaged $digest 0"; fi
    continue
  fi
  for old in blobs/partial/*/$digest; do
    if [ ! -f $old ] || [ $old = $partial ]; then continue; fi
    cp $old $partial && chmod 644 $partial || rm -f $partial
    rm -f $old
  done
  [ ! -f $partial ] || echo "partial $digest $(stat -c %s $partial)"
done
"""

ACCEPT = """
for digest in {digests}; do
  partial=blobs/partial/$token/$digest
  [ -f $partial ] || continue
  [ "$(sha256sum <$partial | cut -c 1-64)" = $digest ] || {{ rm -f $partial; echo "damaged $digest"; }}
done
"""

# Modes are set before the sync, and the sync comes before the rename: after a power cut a blob is complete or absent.
PUBLISH = """
cd blobs/partial/$token
for digest in {digests}; do [ ! -f $digest ] || chmod {mode} $digest; done
{sync}
for digest in {digests}; do [ ! -f $digest ] || mv $digest ../../sha256/$digest; done
"""

# Old coreutils know only the global sync; `sync -f` asks for no more than this file system.
SYNC = 'sync -f "$ROOT" 2>/dev/null || sync'

# FAT and some network file systems have no hard links.
LINK = """
new={kind}/.new-{digest}
link() {{ ln blobs/sha256/$1 "$new/$2" 2>/dev/null || cp -p blobs/sha256/$1 "$new/$2"; }}
rm -rf $new; mkdir $new
{links}
{sync}
if [ -d {kind}/{digest} ]; then
  for file in $new/*; do
    [ "$file" -ef {kind}/{digest}/${{file##*/}} ] || mv -f "$file" {kind}/{digest}/
  done
  rm -rf $new
else
  mv $new {kind}/{digest}
fi
touch {kind}/{digest}
"""

# The moment at which a device changes from one release to another: a rename. With toybox, as on Android, `ln -sfn`
# renames, while `mv -T` is missing or follows the link that it should replace.
SWITCH = f"""
case $(readlink -f "$(command -v ln)") in
  *toybox*) ln -sfn generations/$number current ;;
  *) ln -s generations/$number .current-new; mv -T .current-new current ;;
esac
{SYNC}
"""

# Applications find the library at one path, whatever its digest.
OFFER = """
if [ "$(readlink lib || true)" != libraries/{digest} ]; then
  case $(readlink -f "$(command -v ln)") in
    *toybox*) ln -sfn libraries/{digest} lib ;;
    *) ln -s libraries/{digest} .lib-new; mv -T .lib-new lib ;;
  esac
  {sync}
fi
"""

# Which generation is current, $old, and which one a release gets, $new: the same if it is current already.
NEXT = """
current=$(readlink current || true)
old=${{current#generations/}}
old=${{old:-0}}
new=$old
if [ "$(readlink "generations/$old" || true)" != ../releases/{digest} ]; then
  new=$((old + 1))
  {sync}
  ln -sfn ../releases/{digest} generations/$new
fi
"""

ACTIVATE = f"""{NEXT}
if [ $new = $old ]; then echo same; exit 0; fi
number=$new
{{switch}}
echo new
"""

# The generation before the current one, $target; the script ends if there is none.
PREVIOUS = """
current=$(readlink current || true)
number=${{current#generations/}}
target=0
for link in generations/*; do
  candidate=${{link#generations/}}
  [ -d "$link" ] || continue
  if [ "$candidate" -lt "${{number:-0}}" ] && [ "$candidate" -gt $target ]; then target=$candidate; fi
done
if [ $target = 0 ]; then echo none; exit 0; fi
"""

ROLL_BACK = f"""{PREVIOUS}
number=$target
{{switch}}
echo back
"""

# A release is on trial until its application is healthy. During the trial a file has `NEW OLD BEGAN`, two generations
# and a time, with 0 for OLD if there was none, and on a second line the command that makes the application follow
# `current` when that is OLD again. An interrupted switch may have left its link. The disk may be full: what only tells
# what happened must not keep the release from being taken back, nor the application from being restarted, and the link
# for the way back, `.current-old`, was made before the switch: a file system may have no room for another one.
UNDO = f"""
switch_to() {{
  number=$1
  rm -f .current-new
  if [ -d "generations/$number" ]; then
    {SWITCH}
    [ "$(readlink current)" = "generations/$number" ]
  else
    rm -f current
    {SYNC}
  fi
}}
read_trial() {{ {{ read -r new old began && read -r again; }} <trial; }}
switch_back() {{
  [ "$(readlink .current-old || true)" = "generations/$old" ] && [ -d "generations/$old" ] || return
  case $(readlink -f "$(command -v ln)") in *toybox*) return 1 ;; esac
  mv -T .current-old current || return
  {SYNC}
}}
undo() {{ [ "$(readlink current || true)" != "generations/$new" ] || switch_back || switch_to "$old"; }}
ended() {{ echo interrupted >>trial.log || :; rm -f trial .current-old; {SYNC}; }}
"""

_RECOVER = f"""{UNDO}
[ -e trial ] || exit 0
mkdir -p run
code=0
read_trial || {{ ended; exit 0; }}
undo
words=run/again
(: >$words) 2>/dev/null || words=/dev/null
timeout -s KILL 120 sh -c "$again" >$words 2>&1 </dev/null 9>&- || code=$?
ended
echo "recovered $new $old $code"
[ $code = 0 ] || tail -n 5 $words
"""

# The next holder of the lock ends a trial that was interrupted, in any slot: a slot's unit finds the lock taken, and
# starts on the release that was on trial. A slot that cannot be recovered must not keep the others from being used.
RECOVER = f"""
store=$ROOT
set +e
for slot in "" slots/*; do
  [ -e "$store/$slot/trial" ] || continue
  echo "slot $slot"
  (
    set -e
    ROOT=$store${{slot:+/$slot}}
    cd "$ROOT"
    {_RECOVER}
  )
  code=$?
  [ $code = 0 ] || echo "unrecovered ${{slot:-.}}"
done
set -e
"""

# A unit's ExecStartPre= runs this script, as `recover` in the store: after a power cut the lock is free, and the
# application starts on the previous release. During a trial the lock is held, and the trial decides.
AT_START = f"""#!/bin/sh
# Takes a release back that was on trial when the power failed. See "The application" in docs/device.md.
set -eu
umask 022
cd "$(dirname "$0")"
ROOT=$(pwd)
[ -e trial ] || exit 0
exec 9>>lock
flock -n 9 9>&9 || exit 0
if [ -e lock.within ]; then
  exec 8>>lock.within
  flock -n 8 8>&8 || exit 0
fi
[ -e trial ] || exit 0
printf 'busy %s///0 the device itself\\trolling back an interrupted trial\\t\\t\\n' $$ >lock || :
{UNDO}
if read_trial; then undo; echo "generation $new was on trial; generation $old is current again"; fi
ended
"""

# Another file of that name is replaced: it belongs to the toolchain.
PUT_AT_START = """
if [ ! -f recover ] || [ "$(sha256sum <recover | cut -c 1-64)" != {digest} ]; then
  printf %s {content} | base64 -d >.recover-new
  [ "$(sha256sum <.recover-new | cut -c 1-64)" = {digest} ]
  chmod 755 .recover-new
  {sync}
  mv -f .recover-new recover
fi
"""

PRUNE = """
current=$(readlink current || true)
number=${{current#generations/}}
for link in generations/*; do
  [ -L "$link" ] || continue
  if [ "${{link#generations/}}" -le $((${{number:-0}} - {keep})) ]; then rm -f "$link"; fi
done
for release in releases/*; do
  [ -d "$release" ] || continue
  used=no
  for link in generations/*; do [ "$(readlink "$link")" != "../$release" ] || used=yes; done
  [ $used = yes ] || {{ mv "$release" .trash-release; rm -rf .trash-release "unchecked/${{release##*/}}"; }}
done
for kind in runners servers libraries; do
  for old in $(ls -t $kind | tail -n +{programs}); do
    [ "$(readlink lib || true)" = $kind/$old ] || rm -rf $kind/$old
  done
done
for old in $(ls -t inputs | tail -n +{inputs}); do rm -rf inputs/$old; done
find blobs/sha256 -type f -links 1 -exec rm -f {{}} +
rm -rf blobs/partial/*
"""

# Each piece of many samples is used once, and a device has no room for all of them.
DROP_INPUTS = """
rm -rf inputs/{digest}
[ ! -f blobs/sha256/{digest} ] || [ "$(stat -c %h blobs/sha256/{digest})" != 1 ] || rm -f blobs/sha256/{digest}
"""

LIST = """
[ -d generations ] || exit 0
echo "current $(readlink current || true)"
for link in generations/*; do
  [ -d "$link" ] || continue
  target=$(readlink "$link")
  name=$(sed -n 's/^  "name": "\\(.*\\)",$/\\1/p' "$link/manifest.json" | head -n 1)
  printf '%s\\n' "generation ${link#generations/} ${target#../releases/} $(stat -c %Y "$link") $name"
done
"""

# One rename ends a slot. If this is killed, the next deploy removes the rest.
REMOVE_SLOT = f"""
if [ ! -d slots/{{slot}} ]; then echo none; exit 0; fi
rm -rf .trash-slot
mv slots/{{slot}} .trash-slot
{SYNC}
{{stop}}
rm -rf .trash-slot
find blobs/sha256 -type f -links 1 -exec rm -f {{{{}}}} +
"""

# Runs a script that only reads in the store and in each slot, after a line `TOKEN NAME`.
_IN_EACH_SLOT = """
store=$ROOT
cd "$store" 2>/dev/null || exit 0
for slot in "" slots/*; do
  case $slot in *[!A-Za-z0-9_/-]*) continue ;; esac
  [ -z "$slot" ] || [ -d "$store/$slot" ] || continue
  printf '%s %s\\n' {token} "${{slot#slots/}}"
  (
    ROOT=$store${{slot:+/$slot}}
    {script}
  )
done
"""

_KEPT_INPUTS = 3
_KEPT_PROGRAMS = 2


def enter(slot: str) -> str:
    """Return the assignment of a slot's folder to `ROOT`, which the store's was before; empty for no slot."""
    return f"ROOT=$ROOT/slots/{slot}\n" if slot else ""


def make_slot(slot: str) -> str:
    """Return the script that makes a slot in the store's folder, and prints `new slot` if it did not exist."""
    return _MAKE_SLOT.format(slot=slot, shared=_SHARED)


def remove_slot(slot: str, stop: str) -> str:
    """Return the script that removes a slot, and prints `none` if there is none.

    `stop` is a script that ends the slot's application once the slot has no current release.
    """
    return REMOVE_SLOT.format(slot=slot, stop=stop)


def in_each_slot(script: str, token: str) -> str:
    """Return the script that runs another one, which only reads, in the store and in each slot; see `_IN_EACH_SLOT`."""
    return _IN_EACH_SLOT.format(script=script, token=token)


def examine(digests: Iterable[str]) -> str:
    """Return the script that hashes the blobs on the device and prints the state of each."""
    return EXAMINE.format(digests=" ".join(digests))


def accept(digests: Iterable[str]) -> str:
    """Return the script that hashes uploaded blobs and prints those with a different digest."""
    return ACCEPT.format(digests=" ".join(digests))


def publish(digests: Iterable[str], mode: int) -> str:
    """Return the script that moves uploaded blobs into the store; `mode` has the digits of their octal mode."""
    return PUBLISH.format(digests=" ".join(digests), mode=mode, sync=SYNC)


def install(kind: str, digest: str, files: Mapping[str, str]) -> str:
    """Return the script that makes a folder of links to blobs; see `Blobs.install`."""
    links = "\n".join(f"link {blob} {shlex.quote(name)}" for name, blob in sorted(files.items()))
    return LINK.format(kind=kind, digest=digest, links=links, sync=SYNC)


def offer(digest: str) -> str:
    """Return the script that makes a library the one that applications find."""
    return OFFER.format(digest=digest, sync=SYNC)


def mark(digest: str, *, unchecked: bool) -> str:
    """Return the script that marks a release as not compared with its reference, or removes the mark."""
    return f": >unchecked/{digest}\n" if unchecked else f"rm -f unchecked/{digest}\n"


def marked(digest: str) -> str:
    """Return the script that prints `unchecked` for a release with that mark."""
    return f'[ ! -e "$ROOT"/unchecked/{shlex.quote(digest)} ] || echo unchecked\n'


def activate(digest: str) -> str:
    """Return the script that makes a release current; it prints `new`, or `same` if it was current already."""
    return ACTIVATE.format(digest=digest, sync=SYNC, switch=SWITCH)


def put_recovery() -> str:
    """Return the script that installs or repairs the script that a unit runs before its application."""
    content = AT_START.encode()
    digest, text = hashlib.sha256(content).hexdigest(), base64.b64encode(content).decode()
    return PUT_AT_START.format(digest=digest, content=text, sync=SYNC)


def roll_back() -> str:
    """Return the script that makes the previous activation current; it prints `back`, or `none` if there is none."""
    return ROLL_BACK.format(switch=SWITCH)


def prune(keep: int | str) -> str:
    """Return the script that removes all but the last `keep` activations, and all files without a use.

    `keep` is a number, or the name of a shell variable, such as `$keep`.
    """
    return PRUNE.format(keep=keep, programs=_KEPT_PROGRAMS + 1, inputs=_KEPT_INPUTS + 1)
