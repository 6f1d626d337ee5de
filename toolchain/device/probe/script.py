"""The shell script that probes a device; it changes nothing there, and needs none of our programs.

Each line of its output is `key=value`. It runs in dash, ash, mksh and bash, and with the tools of coreutils, busybox
and toybox; what a device lacks leaves a value empty. `FACTS` asks the questions of the store alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from toolchain.device import scripts
from toolchain.device.probe import decoders
from toolchain.device.probe.hardware_tables import Accelerator

# Prefix of the folder in which the script tries the operations of a store; the folder is removed again.
PROBE_FOLDER = ".edge-toolchain-probe"

# coreutils' nproc counts the threads of OpenMP where these variables are set.
_BEGIN = """
LC_ALL=C; export LC_ALL
unset OMP_NUM_THREADS OMP_THREAD_LIMIT
s() { printf "%s=%s\\n" "$1" "$2"; }
f() { v=; { read -r v <"$2"; } 2>/dev/null; [ -z "$v" ] || s "$1" "$v"; }
r() { [ ! -r "$1" ] || printf r; [ ! -w "$1" ] || printf w; }
b=$(command -v sh); case $b in /*) ;; *) b=/bin/sh ;; esac
sh=$(readlink -f "$b")
"""

# The fifth byte of an ELF file says whether its addresses have 32 or 64 bits.
_SYSTEM = """
s system "$(uname -s)"
s machine "$(uname -m)"
s kernel "$(uname -r)"
case $(head -c 5 "$sh" | tail -c 1) in
  "$(printf "\\001")") s bits 32 ;;
  "$(printf "\\002")") s bits 64 ;;
  *) s bits "$(getconf LONG_BIT)" ;;
esac
s sh "$sh"
v=$(getconf GNU_LIBC_VERSION); s libc "$v"
[ -n "$v" ] || {
  s libc "$(ldd --version 2>&1 | head -n 1)"
  for i in /lib/libc.so.6 /lib/*/libc.so.6 /lib64/libc.so.6 /usr/lib/libc.so.6; do
    [ ! -x $i ] || { s libc "$($i | head -n 1)"; break; }
  done
}
for i in /lib/ld-musl-*; do [ ! -e $i ] || s libc "musl libc, $i, $($i 2>&1 | sed -n "s/^Version //p")"; done
s android "$(getprop ro.build.version.sdk)"
"""

_MACHINE = """
for i in /lib/ld-linux*; do [ ! -e $i ] || s loader $i; done
f kernel_arch /proc/sys/kernel/arch
s init "$(tr "\\000" " " </proc/1/cmdline | head -c 200)"
s model "$(tr -d "\\000" </proc/device-tree/model | head -c 200)"
s compatible "$(tr "\\000" " " </proc/device-tree/compatible | head -c 1000)"
for i in sys_vendor product_name; do f dmi /sys/class/dmi/id/$i; done
for i in /sys/class/ptp/ptp*/clock_name; do f ptp $i; done
f clocks /sys/devices/system/clocksource/clocksource0/available_clocksource
"""

_CPUINFO = """
i="processor|CPU implementer|CPU part|Features|flags|model name|Hardware|Model"
sed -nE -e "{skipped}s/^($i)[[:space:]]*: */cpu \\1=/p" -e "/^isa[[:space:]]*: *rv/!d" \
-e "s/^isa[[:space:]]*: *rv[0-9]*//; s/_/|/" -e ":l" -e "s/^(([a-z] )*)([a-z])([a-z])/\\1\\3 \\4/; tl" \
-e "s/[_|]/ /g; s/^/cpu Features=/p" /proc/cpuinfo | head -c 600000
s cpus "$(nproc || grep -c ^processor /proc/cpuinfo)"
"""
_ALL_CPUS = _CPUINFO.format(skipped="")
# The first block, and what stands below all of them, where old kernels describe the CPUs.
_FIRST_CPU = _CPUINFO.format(skipped="1,/^\\$/!{/^processor/,/^\\$/d;};")

_CPUS = """
for c in /sys/devices/system/cpu/cpu[0-9]*; do
  n=${c##*cpu}
  f max_khz.$n $c/cpufreq/cpuinfo_max_freq
  f capacity.$n $c/cpu_capacity
  g=$c/cpufreq/scaling_governor
  [ ! -e $g ] || { f governor.$n $g; [ ! -w $g ] || s governor_writable $n; }
  for i in $c/cache/index[0-9]*; do
    [ ! -r $i/size ] || { read -r l <$i/level; read -r t <$i/type; read -r z <$i/size; s cache.$n "$l $t $z"; }
  done
done
sed -n "s/^Cpus_allowed_list:[[:space:]]*/allowed=/p" /proc/self/status
"""

_MEMORY = """
sed -n "s/^MemTotal: *\\([0-9]*\\).*/memory=\\1/p; s/^SwapTotal: *\\([0-9]*\\).*/swap=\\1/p" /proc/meminfo
"""

# A limit of a group counts for those below it, too. Version 1 has a tree for each kind of limit.
_LIMITS = """
g=/sys/fs/cgroup
d=$g$(sed -n "s/^0:://p" /proc/self/cgroup | head -n 1)
while :; do
  f group_memory ${d%/}/memory.max; f group_cpus ${d%/}/cpu.max
  case $d in $g/?*) d=${d%/*} ;; *) break ;; esac
done
f group_memory $g/memory/memory.limit_in_bytes
q=; p=; { read -r q <$g/cpu/cpu.cfs_quota_us; read -r p <$g/cpu/cpu.cfs_period_us; } 2>/dev/null
[ -z "$q$p" ] || s group_cpus "$q $p"
"""

_TOOLS = f"""
for i in {scripts.TOOLS}; do command -v $i >/dev/null || s lacks $i; done
"""

_SIGNED = f"""
! {scripts.ASKS} || s signed_only yes
"""

_LOGIN = """
s login "$(id -un)"
s groups "$(id -Gn)"
for i in /usr/lib/openssh/sftp-server /usr/lib/ssh/sftp-server /usr/libexec/sftp-server \
/usr/libexec/openssh/sftp-server; do [ ! -x $i ] || s sftp $i; done
"""

# `$a` is the folder of the store, or the nearest existing one.
_FOLDER = """
s root "$ROOT"
d=$(df -Pk "$a" | tail -n 1); s df "$d"
"""

# Operations are tried in the folder of the store, or in the nearest existing one. mksh passes a descriptor above 2 to a
# program only if it is redirected again, as with 9>&9. When a signal ends a shell, its EXIT trap runs only if the trap
# of the signal exits.
_STORE = """
umask 077
{root}
a=$ROOT
while [ ! -d "$a" ] && [ -n "$a" ]; do a=${{a%/*}}; done
a=${{a:-/}}
s at "$a"
{folder}m=; while read -r v p t o x; do [ "$p" != "${{d##* }}" ] || m="$t $o"; done </proc/mounts; s mount "$m"
w=$a/{prefix}-$token
trap "cd /; rm -rf \\"\\$w\\"" EXIT
trap "exit 1" HUP INT PIPE TERM
e=$(mkdir "$w" 2>&1) && s writes yes || s writes_not "$e"
if [ -d "$w" ] && cd "$w"; then
  e=$( {{ printf "#!%s\\nexit 7\\n" "$b" >run && chmod 700 run; }} 2>&1) && {{
    e=$(./run 2>&1); case $? in 7) s executes yes ;; *) s executes_not "$e" ;; esac; }} || s fills_not "$e"
  e=$( {{ head -c 65536 /dev/zero >full; }} 2>&1) && s fills yes || s fills_not "$e"
  ln full hard && s links yes
  ln -s a old; ln -s b new
  case $(readlink -f "$(command -v ln)") in *toybox*) ln -sfn b old ;; *) mv -T new old ;; esac
  [ "$(readlink old)" != b ] || s switches yes
  e=$( {{ exec 9>lock && flock -n 9 9>&9; }} 2>&1) && s locks yes || s locks_not "$e"
fi
"""

# The defaults of the board files: a login on Android has no home folder.
_ROOTS = """
ROOT=$HOME/.local/share/edge-toolchain
[ -z "$(getprop ro.build.version.sdk)" ] || ROOT=/data/local/tmp/edge-toolchain
"""

_SENSORS = """
for i in /sys/class/thermal/thermal_zone*; do
  [ ! -r $i/type ] || { t=; v=; read -r t <$i/type; read -r v <$i/temp; s thermal "$t $v"; }
done
for i in /sys/class/thermal/cooling_device*; do f cooling $i/type; done
for h in /sys/class/hwmon/hwmon*; do
  n=; [ ! -r $h/name ] || read -r n <$h/name
  for i in $h/power*_input $h/power*_average $h/curr*_input $h/in[0-9]*_input; do
    [ ! -e $i ] || s hwmon "$(r $i) $n ${i##*/}"
  done
done
for i in /sys/class/powercap/*/energy_uj; do [ ! -e $i ] || s powercap "$(r $i) ${i%/energy_uj}"; done
command -v vcgencmd >/dev/null && s throttled "$(timeout 2 vcgencmd get_throttled)"
"""


# Runs in any script, such as an update that a device applies; `$ROOT` is an existing folder.
FACTS = f"""
(
set +eu
{_BEGIN}{_SYSTEM}{_FIRST_CPU}{_MEMORY}{_TOOLS}{_SIGNED}
a=$ROOT
{_FOLDER}
) 2>/dev/null </dev/null || :
"""


def facts(token: str) -> str:
    """Return the script that prints the facts of a device; see `text`, and `FACTS` for what it needs."""
    return _framed(token, FACTS)


def text(token: str, root: str, accelerators: Iterable[Accelerator]) -> str:
    """Return the script that prints all properties of a device.

    Args:
        token: An unpredictable string; the answer begins with `begin=TOKEN` and ends with `end=TOKEN`.
        root: The future folder of the store, perhaps relative to `~/`; empty for the default.
        accelerators: The accelerators to look for.
    """
    where = _ROOTS
    if root:
        where = f'ROOT="$HOME"/{shlex.quote(root[2:])}' if root.startswith("~/") else f"ROOT={shlex.quote(root)}"
    sections = [
        _BEGIN,
        _SYSTEM,
        _MACHINE,
        _ALL_CPUS,
        _CPUS,
        _MEMORY,
        _LIMITS,
        _TOOLS,
        _LOGIN,
        *map(_accelerator, accelerators),
        decoders.SCRIPT,
        _SENSORS,
        _STORE.format(root=where, folder=_FOLDER, prefix=PROBE_FOLDER),
    ]
    return _framed(token, f"token={shlex.quote(token)}\n{{ {''.join(sections)}\n}} 2>/dev/null </dev/null\ncd /")


def _framed(token: str, script: str) -> str:
    return f"echo begin={shlex.quote(token)}\n{script}\necho end={shlex.quote(token)}\n"


def _accelerator(accelerator: Accelerator) -> str:
    """Look for libraries and devices; each device comes with the login's rights."""
    name = accelerator.name
    usual_drivers = _for_each(accelerator.drivers, f"s driver.{name} $i")
    if accelerator.drivers_variable and usual_drivers:
        file = f'for i in "$n" "$n"/*.icd; do [ ! -f "$i" ] || s driver.{name} "$i"; done'
        variable = f'n=${accelerator.drivers_variable}; s drivers_named.{name} "$n"\n[ -z "$n" ] || {file}\n'
        usual_drivers = f'{variable}[ -n "$n" ] || {usual_drivers}'
    choice = f's choice.{name} "${accelerator.choice}"\n' if accelerator.choice else ""
    devices = _for_each(accelerator.devices, f's device.{name} "$(r $i) $(stat -c %G $i) $i"')
    return (
        _libraries(accelerator) + usual_drivers + choice + devices + _for_each(accelerator.kinds, f"s kind.{name} $i")
    )


def _for_each(patterns: Iterable[str], say: str) -> str:
    files = " ".join(patterns)
    return f"for i in {files}; do [ ! -e $i ] || {say}; done\n" if files else ""


def _libraries(accelerator: Accelerator) -> str:
    """Look for libraries: one that a variable names, wherever the linker would find it, is the only one."""
    if not accelerator.libraries:
        return ""
    name = accelerator.name
    output = f's library.{name} "$i"; ! grep -q {accelerator.loader or "."} "$i" || s loads.{name} "$i"'
    usual = _for_each(accelerator.libraries, f"{{ {output}; }}")
    if not accelerator.variable:
        return usual
    check_file = f'[ ! -f "$i" ] || ! grep -q {accelerator.mark} "$i" || {{ {output}; }}'
    return f"""n=${accelerator.variable}; s named.{accelerator.name} "$n"
case $n in
  "") {usual.rstrip()} ;;
  */*) i=$n; {check_file} ;;
  *) for i in /lib /lib/* /usr/lib /usr/lib/* /usr/local/lib /vendor/lib64; do i=$i/$n; {check_file}; done ;;
esac
"""
