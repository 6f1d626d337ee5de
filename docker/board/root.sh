#!/bin/sh
# Makes the root folder of a board of another architecture than this machine's, without running a program of it:
# Debian's packages are unpacked, and what their installation scripts would do is done here as far as a board needs it.
#
# root.sh ARCHITECTURE FOLDER
#   SOURCE_DATE_EPOCH  no file in it is newer
set -eu

architecture=$1
root=$2
here=$(dirname "$(readlink -f "$0")")
packages=$(sed 's/#.*//' "$here"/packages* | xargs | tr ' ' ',')
# busybox-static, which needs no C library, takes the place of busybox.
case $packages in *,busybox-static*) packages=$(echo "$packages" | sed 's/,busybox,/,/') ;; esac

# Of Debian's suites only the release itself: it changes at point releases only, so the content stays the same between.
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
export APT_CONFIG=/tmp/apt/apt.conf # as install/apt.sh left it
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" | head -n 1)

bundle=$("$here/../install/trust.sh")

mmdebstrap --quiet --mode=root --variant=extract --architectures="$architecture" --include="$packages" \
  ${bundle:+--aptopt="Acquire::https::CaInfo \"$bundle\""} \
  --setup-hook='cd "$1" && mkdir -p usr/bin usr/sbin usr/lib && ln -s usr/bin usr/sbin usr/lib .' \
  --extract-hook="$here/register.sh \"\$1\"" \
  "" "$root" \
  "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg check-valid-until=no] $mirror $suite main"

# --- users: Debian's own, sshd's and one that logs in ---
cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
sed -i 's/^root:[^:]*:/root:x:/' "$root/etc/passwd"
echo 'sshd:x:100:65534::/run/sshd:/usr/sbin/nologin' >>"$root/etc/passwd"
echo 'board:x:1000:1000:board:/home/board:/bin/bash' >>"$root/etc/passwd"
echo 'board:x:1000:' >>"$root/etc/group"
# "*" is no password; "!" would be a locked account, which sshd refuses without PAM.
sed 's/:.*/:*:19000:0:99999:7:::/' "$root/etc/passwd" >"$root/etc/shadow"
sed 's/:.*/:*::/' "$root/etc/group" >"$root/etc/gshadow"
chown 0:42 "$root/etc/shadow" "$root/etc/gshadow"
chmod 640 "$root/etc/shadow" "$root/etc/gshadow"
install -d -m 700 "$root/root"
install -d -m 755 "$root/home" "$root/run" "$root/run/sshd" "$root/proc" "$root/sys"
install -d -m 755 -o 1000 -g 1000 "$root/home/board" "$root/data"
install -d -m 1777 "$root/tmp" "$root/var/tmp"

# --- what installation scripts copy and link ---
cp "$root/usr/share/libc-bin/nsswitch.conf" "$root/etc/nsswitch.conf"
cp "$root/usr/share/base-files/profile" "$root/etc/profile"
ln -sf mawk "$root/usr/bin/awk"
ln -sf which.debianutils "$root/usr/bin/which"
echo board >"$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"

# --- the only service ---
install -m 644 "$here/sshd_config" "$root/etc/ssh/sshd_config"
install -D -m 755 "$here/board-start" "$root/usr/local/sbin/board-start"

# --- small, and the same content whenever it is made ---
rm -rf "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/info/* "$root"/usr/share/locale/* \
  "$root"/dev/* "$root"/var/cache/apt "$root"/var/lib/apt "$root"/etc/apt \
  "$root"/etc/ld.so.cache "$root"/etc/machine-id "$root"/etc/resolv.conf
[ ! -e "$here/packages.musl" ] || "$here/musl.sh" "$root"
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
