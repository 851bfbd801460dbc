#!/usr/bin/env bash
# Installs what the virtual machine's tests need on the host, as root on Debian; says what it does.
set -euo pipefail

packages=(qemu-system-x86 qemu-utils seabios mmdebstrap busybox-static cpio acpica-tools gdb-minimal e2fsprogs)

missing=()
for package in "${packages[@]}"; do
  [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || missing+=("$package")
done
# A full gdb serves as well, and the two cannot be installed together.
if command -v gdb >/dev/null; then missing=("${missing[@]/gdb-minimal/}"); fi
read -ra missing <<<"${missing[*]}"
((${#missing[@]})) || exit 0

if ! command -v apt-get >/dev/null; then
  echo "setup: no apt-get here; the virtual machine's tests need: ${missing[*]}" >&2
  exit 0
fi
if [[ "$(id -u)" != 0 ]]; then
  echo "setup: not root; for the virtual machine's tests, as root: apt-get install ${missing[*]}" >&2
  exit 0
fi

echo "setup: installing Debian packages for the virtual machine: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() {
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >"$log" 2>&1
}
# An old package list names versions that are gone: fetch a new one and try once more.
install || { apt-get -o DPkg::Lock::Timeout=300 update -qq >>"$log" 2>&1 && install; } || {
  echo "setup: installing failed; the last lines of apt-get:" >&2
  tail -n 15 "$log" >&2
  exit 1
}
