#!/usr/bin/env bash
# Installs Debian packages, where root and missing; says what it does. Without an argument those that the harness and the kernel tests
# use, with "guest" those that the tests in a virtual machine need besides.
# Services that a package would start are kept from starting: the harness starts its own.
set -euo pipefail

case "${1:-host}" in
  host)
    packages=(memcached nginx-light stress-ng wrk iproute2 cgroup-tools util-linux shellcheck intel-cmt-cat linux-cpupower fuse3)
    python3 -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    ;;
  guest)
    packages=(qemu-system-x86 qemu-utils seabios mmdebstrap busybox-static cpio acpica-tools e2fsprogs)
    command -v gdb >/dev/null || packages+=(gdb-minimal) # a full gdb serves as well, and the two cannot be installed together
    ;;
  *)
    echo "usage: $0 [guest]" >&2
    exit 2
    ;;
esac

missing=()
for package in "${packages[@]}"; do
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: no apt-get here; left out: ${missing[*]}" >&2
  exit 0
fi
if [[ "$(id -u)" != 0 ]]; then
  echo "setup: not root, so these Debian packages are left out: ${missing[*]}" >&2
  echo "setup: as root: apt-get install ${missing[*]}" >&2
  exit 0
fi

echo "setup: installing Debian packages: ${missing[*]}"
policy=/usr/sbin/policy-rc.d
if [[ ! -e "$policy" ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi
log=$(mktemp)
install() {
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1
}
# An old package list names versions that are gone: fetch a new one and try once more.
install || { apt-get -o DPkg::Lock::Timeout=300 update -qq >>"$log" 2>&1 && install; } || {
  echo "setup: installing failed; the last lines of apt-get:" >&2
  tail -n 15 "$log" >&2
  exit 1
}
rm -f "$log"
