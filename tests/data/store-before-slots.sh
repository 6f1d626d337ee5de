# What a toolchain from before slots runs at the beginning and at the end of each deploy, which keeps one activation.
if [ ! -d blobs/partial ]; then
  for entry in * blobs/* blobs/sha256/*; do
    case $entry in
      '*' | 'blobs/*' | 'blobs/sha256/*' | lock | lock.* | records | blobs | blobs/sha256) ;;
      *) echo "$ROOT is not a store: it contains $entry; name another folder" >&2; exit 1 ;;
    esac
  done
fi
mkdir -p blobs/partial blobs/sha256 releases runners servers libraries inputs unchecked generations floors run
rm -rf releases/.new-* runners/.new-* servers/.new-* libraries/.new-* inputs/.new-* .trash-* .current-* current_* run/*
rm -f .lib-* lib_*
current=$(readlink current || true)
number=${current#generations/}
for link in generations/*; do
  [ -L "$link" ] || continue
  if [ "${link#generations/}" -gt "${number:-0}" ]; then rm -f "$link"; fi
done
current=$(readlink current || true)
number=${current#generations/}
for link in generations/*; do
  [ -L "$link" ] || continue
  if [ "${link#generations/}" -le $((${number:-0} - 1)) ]; then rm -f "$link"; fi
done
for release in releases/*; do
  [ -d "$release" ] || continue
  used=no
  for link in generations/*; do [ "$(readlink "$link")" != "../$release" ] || used=yes; done
  [ $used = yes ] || { mv "$release" .trash-release; rm -rf .trash-release "unchecked/${release##*/}"; }
done
for kind in runners servers libraries; do
  for old in $(ls -t $kind | tail -n +3); do rm -rf $kind/$old; done
done
for old in $(ls -t inputs | tail -n +4); do rm -rf inputs/$old; done
find blobs/sha256 -type f -links 1 -exec rm -f {} +
rm -rf blobs/partial/*
