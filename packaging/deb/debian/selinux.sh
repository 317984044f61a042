# With the labels of this module restorecon keeps those that gpushim gives. It has no rules, which the kernel would have
# to load, and waits for the types of container-selinux. Where there is no policy, or it fails, labels last until then.
has_module() {
  if [ -n "${DPKG_ROOT:-}" ]; then return 1; fi
  for policy in /etc/selinux/*/policy/policy.*; do # without one semodule would make directories
    if [ -e "$policy" ]; then semodule -l 2>/dev/null | grep -Eq "^$1([[:space:]]|\$)" && return 0; fi
  done
  return 1
}

keep_labels() {
  if ! has_module base; then return 0; fi
  if semodule -n -X 200 -i /usr/share/gpushim/selinux/gpushim.cil >/dev/null 2>&1; then
    restorecon -R /run/gpushim /var/log/gpushim.log >/dev/null 2>&1 || true
  else
    echo 'gpushim: semodule does not take /usr/share/gpushim/selinux/gpushim.cil: restorecon undoes its labels.'
  fi
}

drop_labels() {
  if ! has_module gpushim; then return 0; fi
  semodule -n -X 200 -r gpushim >/dev/null 2>&1 || true
}
