# What a removal leaves. Where the state of a running container records a program of gpushim's, a stub stays under
# that path (packaging/removed) until that state is gone: the engine calls it for exec, kill and delete.
STUB=/usr/lib/gpushim-removed PROC=${PROC:-/proc}

# begin: also in what stays (packaging/removed)
# List the containers that run and whose engine calls a program of this name for them, by their ids. Root's state
# alone counts: containerd's and dockerd's task directories, those of shims with others, and the words of conmon, which
# CRI-O and Podman have for each. Else a user's file or process could keep a program here.
recorded() { # name
  for task in "$DPKG_ROOT"/run/containerd/io.containerd.runtime.v2.task/*/* \
    "$DPKG_ROOT"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/*/*; do
    in_task "$1" "$task"
  done
  for process in "$PROC"/[0-9]*; do
    comm=
    { read -r comm <"$process/comm"; } 2>/dev/null || continue
    case $comm in
      containerd-shim*) is_of_root "$process" containerd-shim || continue
        for task in "$process"/cwd/../*; do in_task "$1" "$task"; done ;;
      conmon*) is_of_root "$process" conmon || continue
        in_words "$1" "$process/cmdline" ;;
    esac
  done
}

# Whether a process is this host's root's, none of a container's, and of a program that others cannot write. Who may
# have named it is told by neither its name nor the owner of its directory.
is_of_root() { # directory in /proc, the beginning of its program's name
  uids=
  { while read -r key uids; do [ "$key" != Uid: ] || break; done <"$1/status"; } 2>/dev/null || return 1
  # shellcheck disable=SC2086 # words
  set -- "$1" "$2" $uids
  [ "${3:-x}${4:-x}${5:-x}" = 000 ] || return 1
  for space in mnt pid user; do
    [ "$(readlink "$1/ns/$space")" = "$(readlink "$PROC/self/ns/$space")" ] || return 1
  done
  exe=$(readlink "$1/exe") exe=${exe%" (deleted)"}
  case ${exe##*/} in "$2"*) ;; *) return 1 ;; esac
  is_root_s "$1/exe"
}

# Whether a file or directory is root's, and nobody else may write it. By stat, for find is not on every node.
is_root_s() { # path
  case $(stat -L -c '%u %a' "$1" 2>/dev/null) in
    '0 '*[2367] | '0 '*[2367]?) return 1 ;;
    '0 '*) return 0 ;;
    *) return 1 ;;
  esac
}

in_task() { # name, a container's directory
  if [ -L "$2" ] || ! is_root_s "$2/"; then return 0; fi
  for file in "$2/runtime" "$2/options.json"; do
    if [ -L "$file" ] || [ ! -f "$file" ]; then continue; fi
    if ! grep -Eq "(^|[\"/])$1(\"|\$)" "$file"; then # or in a script of dockerd's, for a runtime with arguments
      script=$(grep -m 1 '^/.*/runtimes/' "$file" || true)
      if [ ! -f "$script" ] || ! grep -Eqs "(^|[ '\"/])$1([ '\"]|\$)" "$script"; then continue; fi
    fi
    echo "${2##*/}"
    break
  done
}

in_words() { # name, a file with conmon's arguments
  tr '\n\0' ' \n' <"$2" | {
    option='' id='' called=''
    while IFS= read -r word; do
      # The first of each: behind them are words of users (a log's tag), and Podman's own call, with a --runtime too.
      case $option in -c | --cid) id=${id:-$word} ;; -r | --runtime) called=${called:-$word} ;; esac
      option=$word
    done
    case $id in '' | */* | .*) called='' ;; esac
    case $called in "$1" | */"$1") echo "$id" ;; esac
  }
}

# end: also in what stays
# Note those containers, in a file for each. Where a disk is full, what stays finds them itself.
note() { # the stub's directory
  while read -r name; do
    for id in $(recorded "${name##*/}"); do true 2>/dev/null >"$1/containers/$id" || true; done
  done <"$1/names"
}

# Before the files go: lay the stub out. Without containers too, for some may begin until then.
keep_stub() { # program's name, this version's directory
  if [ ! -f "$2/removed" ]; then return 0; fi
  low=$DPKG_ROOT/run/gpushim/runtime
  if [ -f "$low" ] && [ ! -L "$low" ] && [ -O "$low" ]; then low=$(head -n 1 "$low"); else low=; fi
  if [ ! -x "$low" ]; then # as the launcher finds it
    low=$(PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec/crio
      command -v runc || command -v crun || true)
  fi
  if [ -z "$low" ]; then return 0; fi
  rm -rf "$STUB.new"
  (
    umask 022 && mkdir -p "$STUB.new" &&
      if [ -d "$STUB/containers" ]; then cp -R "$STUB/containers" "$STUB.new"; else mkdir "$STUB.new/containers"; fi &&
      cp "$2/removed" "$STUB.new/runtime" && chmod 755 "$STUB.new/runtime" &&
      echo "$low" >"$STUB.new/low" && cat "$PROC/sys/kernel/random/boot_id" >"$STUB.new/boot" && : >"$STUB.new/last" &&
      printf '/usr/bin/%s\n' gpushim-runtime nvidia-container-runtime >"$STUB.new/names" &&
      if [ -s "$DPKG_ROOT/run/gpushim/triggers" ]; then cp "$DPKG_ROOT/run/gpushim/triggers" "$STUB.new"; fi
  ) || { rm -rf "$STUB.new"; [ -z "$(recorded "$1")" ]; return; }
  note "$STUB.new"
  rm -rf "$STUB"
  mv "$STUB.new" "$STUB"
}

# After the files have gone: let the name lead to the stub, and the next boot take it away. The link is made before all
# else, for the name is missing since the program went: what is put there before, dpkg and rpm would take away like it.
# But where none ran: a container that is created through the link would miss it, if it went again.
link_stub() { # program's name
  if [ ! -d "$STUB" ]; then return 0; fi
  if [ -z "$(ls "$STUB/containers")" ] && [ -z "$(recorded "$1")" ]; then drop_stub || :; [ -d "$STUB" ] || return 0; fi
  if [ ! -e "/usr/bin/$1" ] && [ ! -L "/usr/bin/$1" ]; then ln -s "$STUB/runtime" "/usr/bin/$1"; fi
  if [ -z "$(recorded "$1")" ]; then drop_stub || :; [ -d "$STUB" ] || return 0; fi
  note "$STUB" # others than keep_stub may run
  if [ -d /etc/systemd/system ]; then
    mkdir -p /etc/systemd/system/multi-user.target.wants
    cat >/etc/systemd/system/gpushim-removed.service <<'END'
[Unit]
Description=Take away what gpushim left for containers of the last boot
Before=docker.service containerd.service crio.service
[Service]
Type=oneshot
ExecStart=/usr/lib/gpushim-removed/runtime gpushim-boot
[Install]
WantedBy=multi-user.target
END
    ln -sf ../gpushim-removed.service /etc/systemd/system/multi-user.target.wants/gpushim-removed.service
  fi
  tell_stub
}

# Take the stub away, unless a name leads to it that running containers need.
drop_stub() {
  if [ ! -d "$STUB" ]; then return 0; fi
  for name in gpushim-runtime nvidia-container-runtime; do
    if [ "$(readlink "/usr/bin/$name")" != "$STUB/runtime" ]; then continue; fi
    if [ -n "$(recorded "$name")" ]; then return 0; fi
    rm -f "/usr/bin/$name"
  done
  rm -rf "$STUB" /etc/systemd/system/gpushim-removed.service
  rm -f /etc/systemd/system/multi-user.target.wants/gpushim-removed.service
}

tell_stub() {
  for name in gpushim-runtime nvidia-container-runtime; do
    if [ "$(readlink "/usr/bin/$name")" != "$STUB/runtime" ]; then continue; fi
    echo "gpushim: /usr/bin/$name stays for containers that run: $(recorded "$name" | sort -u | tr '\n' ' ')"
    echo 'gpushim: it is a script that hands them to their low-level runtime; it goes with the last of them, or at the next boot.'
  done
}
