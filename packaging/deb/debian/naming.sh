# The settings files of an engine that name gpushim's programs, of those that lie where nobody has named them: what
# a process says of its settings is not asked here.
naming() {
  timeout 30 gpushim configure "$1" --remove --dry-run --files-only 2>/dev/null | sed -n 's/^--- //p' | tr '\n' ' '
}
