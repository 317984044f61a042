# What each removal leaves for containers that run, whose engines have recorded the names of gpushim's programs: there
# a script (shim/gpushim/removed, on stdin) takes their place, until the next boot.
LEFT=/etc/tmpfiles.d/gpushim-removed.conf KEPT=/run/gpushim-removed

leave_script() (
  umask 022
  # What a refresh has found out: the low-level runtime of the containers, and words of the configuration.
  mkdir -p "$DPKG_ROOT$KEPT" "$DPKG_ROOT/etc/tmpfiles.d"
  for name in runtime triggers; do
    if [ -f "$DPKG_ROOT/run/gpushim/$name" ]; then cp "$DPKG_ROOT/run/gpushim/$name" "$DPKG_ROOT$KEPT/$name"; fi
  done
  runtime=$DPKG_ROOT/usr/bin/gpushim-runtime hook=$DPKG_ROOT/usr/bin/gpushim-hook
  # First what takes them away: without it they would stay for good.
  printf 'R! %s\n' /usr/bin/gpushim-runtime /usr/bin/gpushim-hook "$LEFT" >"$DPKG_ROOT$LEFT" &&
    cat >"$runtime.new" && chmod 755 "$runtime.new" && cp -p "$runtime.new" "$hook.new" &&
    mv -f "$runtime.new" "$runtime" && mv -f "$hook.new" "$hook" &&
    echo 'gpushim: /usr/bin/gpushim-runtime and /usr/bin/gpushim-hook stay for containers that run, as a script without' &&
    echo 'gpushim: GPUs; the next boot takes it away, and so does a new installation.'
)

# Take back what an earlier removal has left beside the programs, which are there again.
take_script() {
  rm -rf "$DPKG_ROOT$LEFT" "$DPKG_ROOT$KEPT"
}
