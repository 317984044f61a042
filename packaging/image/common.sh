#!/bin/sh
# What packaging/image/base and packaging/image/build share, which source it. `top` is the checkout.
: "${top:?is of who sources this}"
umask 022
export LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin # where Debian's own Python stands first

fail() { echo "packaging/image/${0##*/}: $1" >&2 && exit 2; }

# debian ARCH: Debian's name, which is that of OCI images too.
debian() {
  case $1 in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
    *) fail "no image for $1: --arch is x86_64 or aarch64" ;;
  esac
}

if [ -z "${SOURCE_DATE_EPOCH:-}" ]; then # an unpacked archive may lie within somebody else's repository
  [ -e "$top/.git" ] && SOURCE_DATE_EPOCH=$(git -C "$top" log -1 --format=%ct) || SOURCE_DATE_EPOCH=$(stat -c %Y "$top/CHANGELOG.md")
fi
export SOURCE_DATE_EPOCH

# Podman takes no run root whose path has more than 50 characters.
scratch=$(mktemp -d /tmp/gpushim-image.XXXX)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM # and so do that

# Podman with a store of this build's own.
cat >"$scratch/storage.conf" <<END
[storage]
driver = "vfs"
graphroot = "$scratch/store"
runroot = "$scratch/run"
END
export CONTAINERS_STORAGE_CONF="$scratch/storage.conf"
podman() { /usr/bin/podman "--tmpdir=$scratch/tmp" --cgroup-manager=cgroupfs --events-backend=file "$@"; }
image() { # ARCH NAME CONTEXT ARGUMENT...
  platform=linux/$(debian "$1") name=$2 context=$3 && shift 3
  podman build --quiet --network=none "--platform=$platform" "--timestamp=$SOURCE_DATE_EPOCH" --layers=false \
    --identity-label=false "--tag=$name" "$@" "$context" >/dev/null
}

# Bytecode, which nobody can write in a container: without times in it.
compiled() { # Python's name, tree, directory in it
  PYTHONHASHSEED=0 "/usr/bin/$1" -BSs -m compileall -q --invalidation-mode=unchecked-hash -s "$2" -p / "$2$3"
}
