# The settings files of an engine that name gpushim's programs, of those that lie where nobody has named them: what
# a process says of its settings is not asked here. Copies beside them, which removal takes away too, name nothing that
# an engine reads.
naming() {
  timeout 30 gpushim configure "$1" --remove --dry-run --files-only 2>/dev/null |
    sed -n -e '/\.\(before\|after\|kept\)-gpushim$/d' -e 's/^--- //p' | tr '\n' ' '
}

# How to take gpushim out of an engine's settings once it is gone; what that needs is kept beside them.
by_hand() {
  echo "gpushim: ${2}still names gpushim, and containers that use it will not start after the next boot. As root:"
  timeout 30 gpushim configure "$1" --remove --files-only --by-hand 2>/dev/null | sed 's/^/gpushim:   /' || true
}

# What does not happen where another init than systemd starts the host. An image, which has none, is told nothing.
tell_init() {
  if [ -d /run/systemd/system ]; then return 0; fi
  case $(readlink -e /sbin/init) in '' | */systemd) return 0 ;; esac
  echo 'gpushim: systemd does not run here, so none of its units lists the GPUs or writes CDI specs. Have your init run'
  echo 'gpushim: gpushim refresh --keep instead ("Without systemd" in docs/packages.md).'
}
