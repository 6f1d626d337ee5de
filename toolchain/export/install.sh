# What applies an update on a device: POSIX sh, coreutils or busybox or toybox, and flock. The lines before these are made
# for each update by installer.py: what it is, what is in it, and the steps that change a store, which are those of a
# deploy (device/scripts.py, device/lock.py).

usage() {
  for line in \
    "usage: sh ${0##*/} [options]" \
    "" \
    "Applies an update without a network: $model for $board, release sha256:$release${slot:+, in slot $slot}" \
    "" \
    "  --check         look whether it can be applied, and change nothing" \
    "  --rollback      where the device runs this update, make the release before it current again" \
    "  --root DIR      the folder of the store; $root by default" \
    "  --user NAME     apply it as this user, whose store it then is (only for root)" \
    "  --keep N        activations to keep for a roll-back; $keep by default" \
    "  --threads N     threads of the trial run; $threads by default, 0 means every CPU" \
    "  --tolerance X   limit for the outputs' relative difference" \
    "  --json          tell the result as JSON, on standard output" \
    "" \
    "Exit codes: 0 done, or nothing to do; 2 usage; 4 the device cannot do it; 5 the update is damaged, does not" \
    "fit the device, or its outputs differ there; 75 another command uses the device; 130 interrupted." \
    "Unless it ends with 0, the device keeps the release that it had."; do
    printf '%s\n' "$line"
  done
}

# --- what is told ----------------------------------------------------------------------------------------------------

# Names come from a package, from a user and from the store: a terminal gets no control characters from them.
tell() { printf '%s\n' "$1" | sed 's/[[:cntrl:]]/ /g' >&2; }

quoted() { # as JSON has it
  printf '"%s"' "$(printf '%s\n' "$1" | sed -e ':all' -e '$!{' -e 'N' -e 'b all' -e '}' \
    -e 's/[\\"]/\\&/g' -e 's/\n/\\n/g' -e 's/[[:cntrl:]]/ /g')"
}

fail() { # CODE MESSAGE DETAILS HINT
  told=yes
  tell "error: $2"
  [ -z "$3" ] || tell "$(printf '%s\n' "$3" | sed 's/^/  /')"
  [ -z "$4" ] || tell "hint: $4"
  [ $json = no ] || printf '{"error": {"message": %s, "details": %s, "hint": %s, "exit_code": %s}}\n' \
    "$(quoted "$2")" "$(quoted "$3")" "$(quoted "$4")" "$1"
  exit "$1"
}

megabytes() { # of KiB
  printf '%s.%s MB' $(($1 / 1024)) $(($1 % 1024 * 10 / 1024))
}

succeed() { # WHAT, as a word of JSON, and in words
  tell "$2"
  [ $json = no ] || printf '{"result": "%s", "model": %s, "release": "sha256:%s", "update": "sha256:%s", "root": %s, %s}\n' \
    "$1" "$(quoted "$model")" "$release" "$update" "$(quoted "$STORE")" \
    "\"slot\": \"$slot\", \"before\": $before, \"unpacked_kib\": $needed, \"outputs\": ${difference:-null}"
}

# --- the command line ------------------------------------------------------------------------------------------------

wrong() { fail 2 "$1" "" "\`sh ${0##*/} --help\` lists the options"; }

number() { # OPTION VALUE LEAST
  case $2 in '' | *[!0-9]* | ??????*) wrong "$1 takes a number, not '$2'" ;; esac
  [ "$2" -ge "$3" ] || wrong "$1 must be at least $3"
}

options() {
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage; exit 0 ;;
      --check) check=yes ;;
      --json) json=yes ;;
      --rollback) rollback=yes ;;
      --root | --user | --keep | --threads | --tolerance)
        [ $# -gt 1 ] || wrong "$1 needs a value"
        value "$1" "$2"
        shift
        ;;
      *) wrong "unknown option '$1'" ;;
    esac
    shift
  done
}

value() {
  case $1 in
    --root) root=$2; [ -n "$2" ] || wrong "--root needs a folder" ;;
    --user) user=$2; case $2 in '' | -* | *[!A-Za-z0-9_.-]*) wrong "--user takes a name, not '$2'" ;; esac ;;
    --keep) number "$1" "$2" 1; keep=$2 ;;
    --threads) number "$1" "$2" 0; threads=$2 ;;
    --tolerance) tolerance=$2; case $2 in '' | -* | *[!0-9.e-]*) wrong "--tolerance takes a number, not '$2'" ;; esac ;;
  esac
}

find_root() {
  case $root in
    '~/'*) [ -n "${HOME-}" ] || fail 2 "HOME is not set, but the store is $root" "" "set HOME, or choose another folder with --root"
      ROOT=$HOME/${root#??} ;;
    /*) ROOT=$root ;;
    *) ROOT=$PWD/$root ;;
  esac
  STORE=$ROOT place=$ROOT
  while [ ! -d "$place" ] && [ "$place" != / ]; do place=$(dirname "$place"); done
  ROOT=$STORE${slot:+/slots/$slot}
}

# What root changes becomes root's, and the next deploy of the store's owner would fail.
become() {
  mine=$(id -u)
  if [ -z "$user" ]; then
    owner=$(stat -L -c %U "$place")
    [ "$mine" != 0 ] || [ "$(stat -L -c %u "$place")" = 0 ] || fail 2 "$place belongs to $owner, but this command runs as root" \
      "its owner could not change files that root writes there" \
      "use --user $owner to apply the update as that user, or --user root to apply it as root"
  elif [ "$user" != root ] && [ "$user" != "$(id -un)" ]; then
    [ "$mine" = 0 ] || fail 2 "only root can apply an update as $user" "" "leave --user out, or run it as root"
    id -u "$user" >/dev/null 2>&1 || fail 2 "there is no user $user" "" "pass a user of this device with --user"
    command -v su >/dev/null || fail 4 "this device lacks su" "" "apply the update as $user, without --user"
    as_user "test -r$(words "$self")" </dev/null || lend
    exec su -s /bin/sh -c "exec /bin/sh $words" "$user"
  fi
}

as_user() { su -s /bin/sh -c "$1" "$user"; }

# Mender and RAUC keep an update where only root can read it. Its user writes a copy, so that root writes nothing where
# somebody else could have put a link, and removes it afterwards; one that a power cut has left, a day later.
lend_copy() {
  case $root in '~/'*) near='"$HOME"' ;; *) near=$(words "$place") ;; esac
  copy=$(as_user "umask 077
    find $near -maxdepth 1 -name '.edge-toolchain-update-*' -mtime +0 -exec rm -f {} + 2>/dev/null
    copy=\$(mktemp $near/.edge-toolchain-update-XXXXXX) && { cat >\"\$copy\" || { rm -f \"\$copy\"; false; }; } &&
      echo \"\$copy\"" <"$self") ||
    fail 4 "$user cannot read the update, and cannot write a copy near the store" "" \
      "copy it to where $user can read it, or free some space"
  trap : 1 2 15 # which end what is started here; the copy goes afterwards
  as_user "exec /bin/sh$(words "$copy")${words#"$(words "$self")"}" </dev/null
  code=$?
  as_user "rm -f$(words "$copy")" </dev/null
  exit $code
}

# --- whether it fits -------------------------------------------------------------------------------------------------

fact() { printf '%s\n' "$facts" | sed -nE "s/^($1)=//p"; } # of device/probe/script.py

check_tools() {
  lacks=$(fact lacks)
  more=
  [ -z "$application" ] || more="setsid timeout"
  for tool in $more head sed grep dirname id uname; do
    command -v $tool >/dev/null || lacks="$lacks $tool"
  done
  [ -z "$lacks" ] || fail 4 "this device lacks $(echo $lacks)" "" "install coreutils, findutils and util-linux, or busybox"
}

check_fits() {
  [ "$(fact machine)" = "$machine" ] || fail 5 "the update is for $machine, but this device is $(fact machine)" "" \
    "export an update for the board type of this device"
  missing=
  present=$(fact 'cpu flags|cpu Features' | head -n 1)
  for flag in $features; do
    case " $present " in *" $flag "*) ;; *) missing="$missing $flag" ;; esac
  done
  [ -z "$missing" ] || fail 5 "the CPU of this device does not support$missing" \
    "the CPU is a $(fact 'cpu model name|cpu Hardware|cpu Model' | head -n 1)" \
    "export an update for a board type with a more basic target.mcpu"
  check_c_library "$(fact libc | grep -iE 'glibc|gnu libc|gnu c library|musl' | head -n 1)"
}

check_c_library() {
  case $1 in *musl*) found=musl ;; *' '*) found="glibc ${1##* }" ;; *) found="another C library" ;; esac
  case $found:$musl in
    musl:yes) return 0 ;;
    musl:*) fail 5 "this device has musl, but the update is for glibc" "" "export the update again, with --musl" ;;
    *:yes) fail 5 "this device has $found, but the update is for musl" "" "export the update again, without --musl" ;;
    "glibc "[0-9]*.*) [ -n "$glibc" ] && older "${1##* }" "$glibc" || return 0 ;;
    *) return 0 ;;
  esac
  fail 5 "this device has $found, but glibc $glibc or newer is needed" "" "update the device"
}

older() { # of two versions such as 2.28, whether the first one is the older one
  minor=${1#*.} than=${2#*.}
  minor=${minor%%[!0-9]*} than=${than%%[!0-9]*}
  [ "${1%%.*}" -lt "${2%%.*}" ] || { [ "${1%%.*}" -eq "${2%%.*}" ] && [ "${minor:-0}" -lt "${than:-0}" ]; }
}

has() { # whether the store has a blob; with --check, where nothing was hashed before, it is hashed
  [ -f "$STORE/blobs/sha256/$1" ] || return 1
  [ $check = no ] || [ "$(sha256sum <"$STORE/blobs/sha256/$1" | cut -c 1-64)" = "$1" ]
}

check_space() {
  needed=0
  for blob in $blobs; do
    kib=${blob#*:}
    has "${blob%%:*}" || needed=$((needed + ${kib%%:*}))
  done
  set -- $(df -Pk "$place" | tail -n 1)
  [ $needed = 0 ] || [ "${4:-0}" -ge $((needed + spare_kib)) ] ||
    fail 4 "the device has $(megabytes "${4:-0}") free, but $(megabytes $((needed + spare_kib))) are needed" "" \
      "free some space there, or keep fewer releases (--keep)"
}

current() { # digest of the release that the device runs, if there is one
  ! generation=$(readlink "$ROOT/current") || readlink "$ROOT/$generation" | sed 's:.*/::'
}

# --- the lock --------------------------------------------------------------------------------------------------------

# In place of what answers a host: tells that somebody else holds the lock, who for BEGAN OWNER WHAT END TOKEN.
busy() { # seconds since the holder's last sign of life
  tab=$(printf '\t')
  began=${who%% *} line=${who#* } since=
  case $began in
    '' | *[!0-9]*) line=$who ;;
    *) since="for $((now - began)) s by now; " ;;
  esac
  holder=${line%%"$tab"*} line=${line#*"$tab"}
  purpose=${line%%"$tab"*} line=${line#*"$tab"}
  end=${line%%"$tab"*}
  [ -z "$end" ] || end="; \`$end\` on that machine ends it"
  case $1 in other*)
    fail 75 "this device is busy: in use by $holder: $purpose" "only the end of that process frees the device" \
      "end it, and run the command again"
  esac
  fail 75 "this device is busy: in use by ${holder:-someone}: $purpose" \
    "${since}the last sign of life came $1 s ago; the device is free after $lease s without one" \
    "run the command again when that has ended$end"
}

lock() {
  token=$(sha256sum </proc/sys/kernel/random/uuid | cut -c 1-16)
  owner=$(printf '%s@%s\toffline update\t\t%s' "$(id -un 2>/dev/null || id -u)" "$(uname -n)" "$token")
  trap 'left $?' 0
  ROOT=$STORE
  hold
  ROOT=$STORE${slot:+/slots/$slot}
  held=yes
  note busy # for as long as this runs: nobody ends it for want of a sign of life, and flock frees it at its end
}

left() { # on any way out
  trap '' 1 2 15
  [ -z "$child" ] || kill "$child" 2>/dev/null
  [ $held = no ] || rm -rf "${STORE:?}/blobs/partial/$token" "$STORE/run/$token"
  [ "$1" = 0 ] || [ $told = yes ] || fail 4 "the store $STORE cannot be locked" "" \
    "check that the folder is writable for this user and that the disk is not full"
  exit "$1"
}

interrupted() {
  tell "interrupted"
  told=yes
  exit 130
}

# --- the steps -------------------------------------------------------------------------------------------------------

# A step keeps the lock open: where this shell is killed, a step of its own comes to its end before another one begins.
change() { # in the folder of the slot, or of the store without one
  output=$(set -eu; umask 022; cd "$ROOT"; "$1" 2>&1 </dev/null)
  changed $?
}

change_store() {
  output=$(set -eu; umask 022; ROOT=$STORE; cd "$ROOT"; "$1" 2>&1 </dev/null)
  changed $?
}

changed() { # EXIT CODE
  [ "$1" = 0 ] || fail 4 "changing the store on this device failed" "$(printf '%s\n' "$output" | tail -n 5)" \
    "check that $ROOT is writable for this user and that the disk is not full"
}

unpack() {
  mkdir -p "blobs/partial/$token" "run/$token"
  for blob in $blobs; do
    digest=${blob%%:*}
    [ -f "blobs/sha256/$digest" ] || content "$blob" >"blobs/partial/$token/$digest"
  done
  for blob in $expected; do
    content "$blob" >"run/$token/expected"
    [ "$(sha256sum <"run/$token/expected" | cut -c 1-64)" = "${blob%%:*}" ] || echo "damaged ${blob%%:*}"
  done
}

whole() { # what was unpacked is what is in the update
  case $output in
    *damaged*) fail 5 "the unpacked files differ from those in the update" "$output" \
      "copy the update again; if it happens again, check the device's storage" ;;
  esac
}

# What the runner says of a release ends with a line that says how (device/trust.py).
taken() { # MESSAGE
  case $output in
    open | *"code 0") ;;
    *"code 7") fail 5 "$1" "$(printf '%s\n' "$output" | sed '$d')" \
      "the device keeps its previous release; sign the package with \`toolchain trust sign\`, and export it again" ;;
    *) fail 4 "this device cannot check the release" "$output" "apply an update that this toolchain exported" ;;
  esac
}

# A minimum that a power cut kept from being noted, after the release that asks for it became current.
note_pending() {
  change note_minimum
  case $output in
    '' | open | *"code 0" | *"code 7") ;;
    *) fail 4 "this device cannot check the release that it runs" "$output" "check the device's disk space" ;;
  esac
}

try_it() {
  limit= # busybox's timeout leaves a process that waits for a second: it must not keep the lock
  ! timeout 5 true 2>/dev/null 9>&- || limit="timeout $limit_s"
  set --
  [ "$threads" = 0 ] || set -- "$@" --threads "$threads"
  [ -z "$expected" ] || set -- "$@" --expected "run/$token/expected"
  [ -z "$expected" ] || [ -z "$tolerance" ] || set -- "$@" --tolerance "$tolerance"
  cd "$ROOT" || exit
  run "$@" >"run/$token/said" 2>"run/$token/fault" </dev/null 9>&- &
  child=$!
  wait $child
  code=$?
  child=
  [ $code = 0 ] || refused "$(tail -n 5 "run/$token/fault")"
  difference=$(head -n 1 "run/$token/said")
}

refused() {
  [ $code != 6 ] || fail 5 "this device's outputs differ from the reference for $model" "$1" \
    "the device keeps its previous release; use --tolerance to set another limit"
  [ $code != 7 ] || fail 5 "this device does not accept this release" "$1" \
    "the device keeps its previous release; sign the package with \`toolchain trust sign\`, and export it again"
  fail 4 "the model does not run on this device" "${1:-the runner ended with code $code}" \
    "the device keeps its previous release; check the model on another device, and export it again"
}

settle() { # trials that nobody finishes, in any slot
  change_store recover
  case "$output
" in
    *"unrecovered ${slot:+slots/}${slot:-.}
"*) fail 4 "a release was on trial, and could not be taken back" "$output" \
      "check that $ROOT is writable for this user and that the disk is not full" ;;
    *"
unrecovered "*) tell "a release in another slot was on trial, and could not be taken back" ;;
  esac
  if printf '%s\n' "$output" | grep -q '^recovered .* 0$'; then
    tell "a release was on trial, and the command that tried it has ended: the release was taken back first"
  fi
  if printf '%s\n' "$output" | grep -q '^recovered .* [1-9][0-9]*$'; then
    tell "a release was on trial, and was taken back first; the application could not be restarted"
  fi
}

apply() {
  tell "checking what the device has"
  change_store make_slot
  change sweep
  change examine
  check_space
  [ $needed = 0 ] || tell "unpacking $(megabytes $needed)"
  change unpack
  whole
  change accept
  whole
  change publish
  change install
  note_pending
  change verify
  taken "this device does not accept this release"
  change attach
  tell "running it once, and comparing its outputs"
  try_it
  switch activate
  change note_minimum
  case $output in
    '' | open | *"code 0") ;;
    *) fail 4 "this device runs the release, but could not store the minimum sequence that its signers require" "$output" \
      "check the device's disk space; the next update stores it first" ;;
  esac
  change prune
}

# Makes another release current: $result tells what came of it. With an application, the device tries the release with
# it (device/application), in a process of its own that goes on, and holds the lock, where this one is killed.
switch() {
  if [ -n "$application" ]; then
    tell "restarting $application, and waiting up to $within_s s until it is healthy"
    change "$1"
    note busy # the trial had put itself there
    [ "$output" = none ] || tried
  else
    change "$1"
  fi
  case $output in
    *same*) result=current ;;
    none) result=none ;;
    *) result=${result:-applied} ;;
  esac
}

tried() {
  case $output in
    *"
end"*) ;;
    *) broken=$output
      change_store recover
      fail 4 "the trial with $application ended early" "$broken" "apply the update again" ;;
  esac
  set -- $(printf '%s\n' "$output" | sed -n 's/^trial //p')
  if printf '%s\n' "$output" | grep -q '^failed$'; then
    unwell "$@"
  fi
  [ "$1" != "$2" ] || result=current
}

unwell() { # NEW OLD
  back=$(printf '%s\n' "$output" | sed -n 's/^back //p')
  case "$1 $back" in
    "$2 "*) now="the device already ran this release, and keeps it" ;;
    *" 0 "*) now="there was no previous release, so the device has none now" ;;
    *" well") now="generation $2 is current again, and the application is healthy there" ;;
    *" unwell") now="generation $2 is current again, and the application is NOT HEALTHY there either" ;;
    *) now="the previous release could not be made current: the next command or the next start of the device does that" ;;
  esac
  fail 5 "$application did not become healthy within $within_s s; $now" \
    "$(printf '%s\n' "$output" | sed -n -e 's/^words //p' -e 's/^unit //p')" \
    "fix the application or the model, and apply the update again"
}

undo() {
  if [ "$(current)" != "$release" ]; then
    succeed other "this device does not run this update: nothing is rolled back"
    return
  fi
  change sweep
  note_pending
  change verify_previous
  [ "$output" = none ] || taken "this device does not accept the previous release"
  switch roll_back
  [ "$result" != none ] || fail 4 "there is no previous release" "" "apply another update"
  succeed back "this device runs $(current | cut -c 1-16) again"
}

main() {
  umask 022
  check=no rollback=no json=no told=no held=no child= user= difference= result= needed=0 within=
  words=$(words "$self" "$@")
  options "$@"
  find_root
  facts=$(ROOT=$place; survey 2>/dev/null)
  check_tools
  become
  check_content
  update=$(sha256sum <"$self" | cut -c 1-64)
  tell "update sha256:$update: $model for $board${slot:+, in slot $slot}"
  [ $rollback = yes ] || check_fits
  (ROOT=$STORE; peek)
  code=$?
  [ $code = 0 ] || exit $code
  before=null running=$(current)
  [ -z "$running" ] || before="\"sha256:$running\""
  if [ $check = yes ]; then
    [ -w "$place" ] || fail 4 "$place is not writable" "" "choose another folder with --root, or another user with --user"
    check_space
    [ -n "$signed" ] || ! asks || [ -e "$ROOT/releases/$release/release.signed" ] ||
      fail 5 "this device accepts only signed releases, but this update is not signed" "" \
        "sign the package with \`toolchain trust sign\`, and export it again"
    succeed fits "the update can be applied: $(megabytes $needed) would be unpacked"
    return
  fi
  trap interrupted 1 2 15
  lock
  settle
  if [ $rollback = yes ]; then
    undo
    return
  fi
  apply
  case $result in
    current) succeed current "already current: $model ${release%"${release#????????????????}"}" ;;
    *) succeed applied "this device runs $model ${release%"${release#????????????????}"} now" ;;
  esac
}

words() { # the command line, without --user, for another shell
  skip=no
  for word in "$@"; do
    case $skip$word in
      no--user) skip=yes ;;
      yes*) skip=no ;;
      *) printf " '%s'" "$(printf '%s' "$word" | sed "s/'/'\\\\''/g")" ;;
    esac
  done
}
