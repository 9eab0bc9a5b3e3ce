#!/usr/bin/env bash
# README's two commands on a fresh Debian 12: a root made by mmdebstrap that holds only apt, git
# and a shell. Uses this machine's package mirrors, certificates and pip settings.
# Usage: fresh_machine.sh SOURCE_DIR [run|test|both]. Needs root and mmdebstrap; exit 77: skipped.
set -euo pipefail
source_dir=$(readlink -f "$1")
what=${2:-both}

command -v mmdebstrap >/dev/null || { echo "skipped: mmdebstrap is not installed"; exit 77; }
[ "$(id -u)" -eq 0 ] || { echo "skipped: needs root"; exit 77; }

root=$(mktemp -d /var/tmp/tensorfold-fresh.XXXXXX)
cleanup() {
  umount -l "$root/proc" "$root/dev" 2>/dev/null || true
  rm -rf --one-file-system "$root"
}
trap cleanup EXIT

sources=/etc/apt/sources.list
[ -f "$sources" ] || sources=/etc/apt/sources.list.d/debian.sources
mmdebstrap --quiet --variant=apt --include=git,ca-certificates --architectures=amd64 \
  bookworm "$root" "$sources"

# What lets the new machine reach the same mirrors.
for file in /etc/apt/apt.conf.d/99* /etc/apt/auth.conf.d/* /etc/pip.conf \
    /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf /etc/hosts; do
  [ -f "$file" ] && install -D -m 644 "$file" "$root$file"
done
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"

git clone -q "file://$source_dir" "$root/srv/tensorfoldd" -c safe.directory='*'
inside() {
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp LANG=C.UTF-8 \
    PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    TENSORFOLD_LISTEN=127.0.0.1:18888 chroot "$root" /bin/sh -c "cd /srv/tensorfoldd && $1"
}

if [ "$what" != test ]; then
  inside "packaging/bootstrap run --once" | tee "$root/run.log"
  grep -q '^==> stopped' "$root/run.log"
  reply=$(sed -n 's/^tiny: //p' "$root/run.log")
  [ ${#reply} -ge 10 ] || { echo "the reply is too short: '$reply'"; exit 1; }
fi
if [ "$what" != run ]; then
  inside "packaging/bootstrap test"
fi
echo "fresh machine: passed"
