#!/bin/sh
# Makes of a board's root folder one with musl: all its programs are busybox's, and programs for glibc do not start.
# Only sshd and flock, which Debian's busybox lacks, are for glibc: their own loader starts them, and lies with their
# libraries where nothing else looks.
#
# musl.sh FOLDER
set -eu

root=$1
here=$(dirname "$(readlink -f "$0")")
debian=$root.debian

mv "$root" "$debian"
mkdir -p "$root/bin" "$root/sbin" "$root/lib" "$root/usr/bin" "$root/usr/sbin" "$root/opt/sshd" "$root/usr/local/sbin"
for name in data dev etc home proc root run sys tmp var; do mv "$debian/$name" "$root"; done
rm -rf "$root/etc/ld.so.conf" "$root/etc/ld.so.conf.d" "$root/var/lib/dpkg"

# --- musl and busybox ---
mv "$debian"/usr/lib/*-linux-musl* "$debian"/usr/lib/ld-musl-* "$root/lib"
cp "$debian/usr/bin/busybox" "$root/bin"
ln -s busybox "$root/bin/sh"
loader=$(cd "$root/lib" && echo ld-musl-*)
ln -s "/lib/$loader" "$root/usr/bin/ldd" # as on Alpine
sed -i 's,/bin/bash$,/bin/sh,' "$root/etc/passwd"

# --- sshd, and its libraries ---
cp "$debian/usr/sbin/sshd" "$debian/usr/bin/ssh-keygen" "$debian/usr/bin/flock" "$root/opt/sshd"
cat >"$root/usr/bin/flock" <<'END'
#!/bin/sh
exec /opt/sshd/loader --library-path /opt/sshd /opt/sshd/flock "$@"
END
chmod 755 "$root/usr/bin/flock"
for library in "$debian"/usr/lib/*-linux-gnu*/*.so*; do
  [ ! -f "$library" ] || cp -L "$library" "$root/opt/sshd"
done
cp -L "$debian"/usr/lib/ld-linux* "$root/opt/sshd/loader" # on 64-bit Arm a link, elsewhere too
sed -i 's,/usr/lib/openssh/sftp-server,internal-sftp,' "$root/etc/ssh/sshd_config"
install -m 755 "$here/board-start.musl" "$root/usr/local/sbin/board-start"
rm -rf "$debian"
