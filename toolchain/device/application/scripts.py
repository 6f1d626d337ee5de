"""The POSIX sh scripts that try a release with its application; they run in the store's root.

A trial is one process on the device, in a session of its own, that holds the store's lock: it goes on, and ends well or
takes itself back, whatever becomes of the client. It writes what happens to `trial.log`, a word and its text per line.

What Python sets: `unit` and `scope`, or empty; `restart` and `stop`, `health` or empty, and `within` seconds.
"""

from __future__ import annotations

from toolchain.device.lock import NOTE, SAID
from toolchain.device.scripts import SYNC, UNDO

TOOLS = "setsid timeout"

# Time is that since the start of the device: its clock may be set on the way. What a command starts must not hold the
# lock, or keep a pipe open; one that hangs is ended with the time that there was, and a health command that writes
# without an end before it has filled the disk, on which the way back needs some room.
_LOOK = """
clock() { read -r up rest </proc/uptime; echo "${up%.*}"; }
window() { until=$(($(clock) + within)); }
left() { echo $((until - $(clock))); }
bounded() {
  seconds=$(left)
  [ "$seconds" -gt 0 ] && timeout -s KILL "$seconds" sh -c "$1" </dev/null >"${words:-/dev/null}" 2>&1 9>&-
}
shown() { systemctl $scope show -p ActiveState -p SubState -p MainPID "$unit" 2>/dev/null 9>&-; }
active() {
  state=
  [ -n "$unit" ] || return 0
  state=$(shown) || return 1
  case $state in *ActiveState=active*) ;; *) return 1 ;; esac
  [ -n "$health" ] || [ "${first:=$state}" = "$state" ]
}
well() { active && { [ -z "$health" ] || bounded "ulimit -f 65536 2>/dev/null; $health"; }; }
"""

# With a health command the first good answer counts. Without one the unit must be active, with the same process, for
# the whole time.
_AWAIT = """
await() {
  first=
  while [ "$(left)" -gt 0 ]; do
    if well; then
      [ -z "$health" ] || return 0
    elif [ -z "$health" ]; then
      return 1
    fi
    case $state in *ActiveState=failed*) return 1 ;; esac
    sleep 0.5 9>&-
  done
  [ -z "$health" ]
}
settle() { if [ -n "$health" ]; then await; else sleep 1 9>&-; first=; active; fi; }
"""

# The marker is on the disk before the switch, and goes when the application was seen to be well, or runs on the old
# release again: whenever the power fails, what starts next has proved itself.
_MARK = f"""
mark() {{
  printf '%s %s %s\\n%s\\n' "$new" "$old" "$(date +%s)" "$again" >.trial-new || return
  {SYNC}
  mv -f .trial-new trial || return
  {SYNC}
}}
unmark() {{ rm -f trial; {SYNC}; }}
begin() {{ [ "$new" = "$old" ] || {{ mark && switch_to "$new"; }}; }}
restarted() {{ window; bounded "$1"; }}
lines() {{ cut -c 1-500 | sed "s/^/$1 /"; }}
explain() {{
  [ ! -s "$words" ] || tail -n 10 "$words" | lines words
  [ -z "$unit" ] || systemctl $scope status --no-pager --full --lines=10 "$unit" 2>&1 9>&- | lines unit
}}
back() {{
  undo || return
  if restarted "$again"; then code=well; else code=unwell; fi
  unmark
  [ "$code" = unwell ] || [ "$old" = 0 ] || settle || code=unwell
  echo "back $old $code"
}}
"""

# Whoever finds the lock taken is told by its file that the holder is alive, so the file names this process now.
JOB = f"""
set -u
{SAID}{NOTE}
trap '' HUP
ROOT=$1 file=$2 new=$3 old=$4
cd "$ROOT" || exit
me
said "$file"
began=${{who%% *}} owner=${{who#* }}
note busy
words=run/words
{UNDO}{_LOOK}{_AWAIT}{_MARK}
again=$restart
[ "$old" != 0 ] || again=$stop
echo "trial $new $old $(date +%s) $(basename "$(readlink "generations/$new")")"
window
first=
if [ "$new" = "$old" ] && well; then
  echo untouched
elif begin && restarted "$restart" && await; then
  unmark
  echo healthy
else
  echo failed
  explain
  [ "$new" = "$old" ] || back
fi
echo end
"""

# The lock's holder waits for its end, and so does the client, if it lives.
LAUNCH = """
mkdir -p run
rm -f run/words
setsid sh -c {job} trial "$ROOT" "$file" "$new" "$old" </dev/null >trial.log 2>&1 9>&9 &
wait $! || true
cat trial.log
"""

# Reads the state without the lock.
STATE = """
cd "$ROOT" 2>/dev/null || exit 0
[ ! -e trial.log ] || cat trial.log
if [ -e trial ] && read -r new old began <trial; then echo "open $(($(date +%s) - began))"; fi
"""

LOOK = f"""{_LOOK}
window
first=
if well; then echo well; else echo unwell; fi
[ -z "$unit" ] || shown | sed 's/^/unit /'
"""
