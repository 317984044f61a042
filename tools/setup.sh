#!/bin/sh
# Install what the demo, the packages, the image or the tests need on Debian 12:
# `tools/setup.sh demo|package|image|release|test`, as root; or what the unit tests need, as anybody on any Linux with
# Python 3.9 or later: `tools/setup.sh unit`.
#
# Packages come from the host's own apt sources and only if they are missing. Everything else lands in this
# checkout: vendor/ holds the Python packages that a refresh imports with the system's Python, .venv/ the tools
# of the tests; but programs that tests run are built once for the machine, into ~/.cache/gpushim-tests (tests/builds.py).
# A second run with the same files of requirements does nothing.
set -eu
cd "$(dirname "$0")/.."

what=${1:-test}
packages="busybox-static gcc libc6-dev libc-bin mmdebstrap python3 python3-venv runc"
building="debhelper dh-python lintian python3 python3-venv rpm rpmlint"
imaging="mmdebstrap podman python3 python3-venv"
releasing="$building $imaging apt-utils createrepo-c git gpg python3-yaml" # with rpm comes rpmsign
case $what in
  demo) ;;
  package) packages=$building ;;
  image) packages=$imaging ;;
  release) packages=$releasing ;;
  unit) packages='' ;;
  # Without recommended packages docker.io brings no bridge firewall tools; its service does start.
  test) packages="$packages containerd crun docker.io shellcheck python3-grpcio python3-prometheus-client python3-yaml strace systemd udev valgrind $releasing" ;;
  *) echo "usage: tools/setup.sh demo|package|image|release|test|unit" >&2 && exit 2 ;;
esac

say() { echo "setup: $1"; }

wanted=''
for package in $packages; do
  # shellcheck disable=SC2016 # the dollar is dpkg-query's
  state=$(dpkg-query --show --showformat='${db:Status-Abbrev}' "$package" 2>/dev/null) || state=''
  case $state in ii*) ;; *) wanted="$wanted $package" ;; esac
done
if [ -n "$wanted" ]; then
  [ "$(id -u)" = 0 ] || { say "these packages are missing, install them as root:$wanted" >&2 && exit 1; }
  say "installing Debian packages:$wanted"
  apt-get update --quiet=2
  # shellcheck disable=SC2086 # a list of words
  DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends $wanted
fi

# made DIRECTORY: whether it was made from these files.
recipe=$(cat pyproject.toml packaging/bundled.txt tools/vendor tools/setup.sh | sha256sum)
made() { [ -f "$1/.made" ] && [ "$(cat "$1/.made")" = "$recipe" ]; }
finished() { echo "$recipe" >"$1/.made"; }

python=/usr/bin/python3
[ "$what" != unit ] || python=python3
[ -x .venv/bin/python ] || "$python" -m venv .venv
runs_here() { case $what in demo | test | unit) ;; *) return 1 ;; esac }
tests_here() { [ "$what" = test ] || [ "$what" = unit ]; }
pip() { .venv/bin/python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore "$@"; }

if runs_here && ! made vendor; then
  say "installing into vendor/: what packaging/bundled.txt names, and PyYAML"
  tools/vendor vendor
  pip --no-compile --no-deps --target vendor 'pyyaml>=6' # of packages, the distribution's
  finished vendor
fi

if tests_here && ! made .venv; then
  say "installing into .venv/: gpushim itself, editable, and the tools of the tests"
  pip --editable '.[dev]'
  finished .venv
fi

# unpack PACKAGE FILE: one file of a package of Debian's that is not installed, into .cache/PACKAGE/. Without it a test
# is skipped, and says so.
unpack() (
  [ ! -x ".cache/$1/$2" ] || return 0
  say "unpacking Debian's $1 into .cache/$1/"
  mkdir -p ".cache/$1"
  cd ".cache/$1"
  apt-get download --quiet=2 -o APT::Sandbox::User=root "$1"
  dpkg-deb --fsys-tarfile "$1"_*.deb | tar -x "./$2"
  rm "$1"_*.deb
)
if [ "$what" = test ]; then
  unpack prometheus usr/bin/prometheus || say "there is no prometheus" # installed, it would start
  unpack logrotate usr/sbin/logrotate || say "there is no logrotate" # installed, it would bring a cron
  unpack docker-registry usr/bin/docker-registry || say "there is no docker-registry" # as prometheus
  unpack skopeo usr/bin/skopeo || say "there is no skopeo"
fi

# Kubernetes and others that no Debian has of today, once for the machine; where that cannot be, tests are skipped.
[ "$what" != test ] || .venv/bin/python tests/builds.py

# Nothing writes bytecode at run time; a checkout that has it starts a container some 20 ms sooner.
if runs_here; then
  "$python" -m compileall -q vendor shim hook plugin
  "$python" -IBS shim/gpushim/create/stub.py compile
fi
