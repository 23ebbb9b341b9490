#!/usr/bin/env bash
# The programs that the tests run for real: Prometheus, promtool, Alertmanager, amtool, Chromium. Run by `make test`.
# As root they come from Debian (which starts the first two as services where systemd runs); otherwise they are named, and
# the tests that need them are skipped and say so. GPUWATCH_SKIP_DEBIAN=1 leaves everything as it is.
set -euo pipefail
[ -z "${GPUWATCH_SKIP_DEBIAN:-}" ] || exit 0

need=()
command -v prometheus >/dev/null || need+=(prometheus)
command -v promtool >/dev/null || need+=(promtool)  # a package of its own since Debian 13, part of prometheus before
command -v amtool >/dev/null && command -v prometheus-alertmanager >/dev/null || need+=(prometheus-alertmanager)
command -v chromium >/dev/null || need+=(chromium fonts-dejavu-core)
[ ${#need[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "not installed, so the tests that need them will be skipped: ${need[*]}" >&2
  echo "on Debian: sudo apt-get install ${need[*]}   (Debian 12 has promtool in prometheus)" >&2
  exit 0
fi

apt-get update -qq
packages=()
for name in "${need[@]}"; do
  if [ "$name" = promtool ] && ! apt-cache show promtool >/dev/null 2>&1; then
    name=prometheus
  fi
  packages+=("$name")
done
echo "installing Debian packages: ${packages[*]}"
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
