# The settings files of an engine that name gpushim's programs, as `gpushim configure` finds them.
naming() {
  timeout 30 gpushim configure "$1" --remove --dry-run 2>/dev/null | sed -n 's/^--- //p' | tr '\n' ' '
}

# How to take gpushim out of an engine's settings once it is gone; what that needs is kept beside them.
by_hand() {
  echo "gpushim: ${2}still names gpushim, and containers that use it will not start. As root, and if nobody has changed"
  echo 'gpushim: it since (diff shows that):'
  timeout 30 gpushim configure "$1" --remove --by-hand 2>/dev/null | sed 's/^/gpushim:   /' || true
}
