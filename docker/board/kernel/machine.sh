#!/bin/sh
# Makes what QEMU boots: FOLDER/kernel, FOLDER/initrd and FOLDER/root.ext4.
#
# machine.sh ARCHITECTURE ROOT FOLDER
#   SOURCE_DATE_EPOCH  no file in it is newer
set -eu

architecture=$1
root=$2
folder=$3
here=$(dirname "$(readlink -f "$0")")
case $architecture in
  arm64) package=linux-image-arm64 ;;
  armhf) package=linux-image-armmp ;;
esac

# --- packages of the other architecture, with an apt of its own ---
export APT_CONFIG=/tmp/apt/apt.conf # as install/apt.sh left it
suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" | head -n 1)
state=/tmp/foreign
mkdir -p "$state/lists/partial" "$state/debs" "$state/kernel" "$state/busybox"
echo "deb [check-valid-until=no] $mirror $suite main" >"$state/sources.list"
foreign() {
  command=$1
  shift
  "$command" -qq -o APT::Architecture="$architecture" -o APT::Architectures="$architecture" \
    -o Dir::Etc::SourceList="$state/sources.list" -o Dir::State::Lists="$state/lists" \
    -o Dir::State::Status=/dev/null "$@"
}
foreign apt-get update
image=$(foreign apt-cache depends "$package" | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
cd "$state/debs"
foreign apt-get download "$image" busybox-static
dpkg-deb -x linux-image-*.deb "$state/kernel"
dpkg-deb -x busybox-static_*.deb "$state/busybox"

# --- initial RAM disk: busybox, and those modules that lead to the root file system ---
version=$(ls "$state/kernel/lib/modules")
initrd=$state/initrd
mkdir -p "$initrd/bin" "$initrd/modules" "$initrd/proc" "$initrd/sys" "$initrd/dev" "$initrd/lower" "$initrd/upper" \
  "$initrd/root"
cp "$state/busybox/bin/busybox" "$initrd/bin/busybox"
install -m 755 "$here/init" "$initrd/init"
depmod -b "$state/kernel" "$version"
for module in virtio_mmio virtio_blk virtio_net virtio_rng ext4 crc32c_generic overlay; do
  modprobe --dirname "$state/kernel" --set-version "$version" --show-depends "$module"
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r path; do
  cp "$path" "$initrd/modules/"
  basename "$path" >>"$initrd/modules/order"
done
find "$initrd" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +

mkdir -p "$folder"
(cd "$initrd" && find . | LC_ALL=C sort | cpio --quiet --reproducible -o -H newc -R 0:0 | gzip -n -9) >"$folder/initrd"
cp "$state/kernel/boot/vmlinuz-$version" "$folder/kernel"

# --- the root folder as a file system, which is mounted read-only ---
install -m 755 "$here/board-init" "$root/usr/local/sbin/board-init"
touch --date="@$SOURCE_DATE_EPOCH" "$root/usr/local/sbin/board-init" "$root/usr/local/sbin"
size=$(($(du -sk "$root" | cut -f 1) * 12 / 10 + 8192))
id=00000000-0000-4000-8000-000000000000
E2FSPROGS_FAKE_TIME=$SOURCE_DATE_EPOCH mke2fs -q -t ext4 -L board -U "$id" -O ^has_journal -E hash_seed="$id" \
  -m 0 -d "$root" "$folder/root.ext4" "${size}k"
touch --date="@$SOURCE_DATE_EPOCH" "$folder"/* "$folder"
