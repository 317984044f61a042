# The settings files of an engine that name gpushim's programs, as `gpushim configure` finds them.
naming() {
  timeout 30 gpushim configure "$1" --remove --dry-run 2>/dev/null | sed -n 's/^--- //p' | tr '\n' ' '
}
