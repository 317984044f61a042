# Wait before a version's files go, for containers that are being created with them: most take a fraction of a second;
# one that has to list the GPUs first holds a lock that is root's alone (inventory/renew.py).
wait_for_creates() {
  lock=$DPKG_ROOT/run/gpushim/lock
  sleep 2
  if [ -f "$lock" ] && [ ! -L "$lock" ] && ! flock -n "$lock" true; then
    flock -w 30 "$lock" true || true
    sleep 2 # for those that have waited for it
  fi
}

# CDI specs of gpushim's would let containers fail whose engine injects their devices by itself. Those that refresh has
# written go, as its record knows them (cdi/generate/written.py); others that name gpushim's hook are laid aside.
remove_specs() {
  python3 -ISB - "$DPKG_ROOT" <<'END' || true
import hashlib, json, os, sys
try:
    with open(sys.argv[1] + "/var/lib/gpushim/specs") as file:
        known = json.load(file)
    assert isinstance(known, dict)
except (OSError, ValueError, AssertionError):
    known = {}
for path, hashes in known.items():
    try:
        fd = os.open(sys.argv[1] + path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as spec:
            if isinstance(hashes, list) and hashlib.sha256(spec.read(1 << 26)).hexdigest() in hashes:
                os.unlink(sys.argv[1] + path)
    except OSError:
        continue
END
  for spec in "$DPKG_ROOT"/etc/cdi/*.json "$DPKG_ROOT"/etc/cdi/*.yaml "$DPKG_ROOT"/var/run/cdi/*.json \
    "$DPKG_ROOT"/var/run/cdi/*.yaml; do
    if ! grep -qs /usr/bin/gpushim-hook "$spec"; then continue; fi
    kept=$spec.kept-gpushim number=1
    while [ -e "$kept" ] || [ -L "$kept" ]; do
      number=$((number + 1)) kept=$spec.kept-gpushim.$number
    done
    mv -nT "$spec" "$kept"
    echo "gpushim: $spec names gpushim-hook; it is $kept now, which no engine reads."
  done
  rm -f "$DPKG_ROOT/var/lib/gpushim/specs" "$DPKG_ROOT/var/lib/gpushim/specs.new"
  rmdir "$DPKG_ROOT/var/run/cdi" 2>/dev/null || true
}

# What `gpushim configure docker` has linked for docker run --gpus (docker/dockerd.py); as long as Docker's settings name
# gpushim it stays, as they do.
remove_links() {
  if grep -qs gpushim-runtime "$DPKG_ROOT/etc/docker/daemon.json"; then return 0; fi
  for name in nvidia-cdi-hook nvidia-container-runtime-hook; do
    link=$DPKG_ROOT/usr/local/bin/$name
    if [ "$(readlink "$link")" = /usr/bin/gpushim-hook ]; then rm -f "$link"; fi
  done
}

# What `gpushim configure` keeps beside engines' settings, but for those that still name gpushim: it is what takes that
# out. Copies of what somebody else wrote (NAME.kept-gpushim) stay in any case.
remove_records() {
  for folder in /etc/docker /etc/containerd /etc/crio /etc/containers /etc/containers/oci \
    /usr/share/containers/oci /etc/k0s /var/lib/rancher/*/agent/etc/containerd \
    /var/snap/docker/current/config /var/snap/microk8s/current/args; do
    folder=$DPKG_ROOT$folder
    for record in "$folder"/*.before-gpushim "$folder"/*.after-gpushim; do
      name=${record##*/} name=${name%.*-gpushim}
      grep -qs 'gpushim-\(runtime\|hook\)' "$folder/$name" "$folder/${name%%.d.*}.d/${name#*.d.}" || rm -f "$record"
    done
  done
}
