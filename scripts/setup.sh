#!/usr/bin/env bash
# Make the virtual environment and install what gpuwatch, its engine and its tests need. Run by `make setup`.
set -euo pipefail
venv=${1:-.venv}

# Debian packages: python3-venv for the environment; Prometheus, promtool, Alertmanager and Chromium for the tests.
need=()
python3 -c 'import ensurepip' 2>/dev/null || need+=(python3-venv)
if [ -z "${GPUWATCH_SKIP_DEBIAN:-}" ]; then
  command -v promtool >/dev/null || need+=(prometheus)
  command -v prometheus-alertmanager >/dev/null || need+=(prometheus-alertmanager)
  command -v chromium >/dev/null || need+=(chromium fonts-dejavu-core)
fi
if [ ${#need[@]} -gt 0 ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing Debian packages: ${need[*]}"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
  elif [[ " ${need[*]} " == *" python3-venv "* ]]; then
    echo "python3-venv is missing; run: sudo apt-get install ${need[*]}" >&2
    exit 2
  else
    echo "not installed, so the tests that need them will be skipped: ${need[*]} (sudo apt-get install ${need[*]})" >&2
  fi
fi

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install -q --disable-pip-version-check -U "pip>=25.1"
# The CPU build of torch is a version of its own here: naming it keeps pip from fetching gigabytes of CUDA.
"$venv/bin/python" -c 'import torch' 2>/dev/null || "$venv/bin/python" -m pip install -q torch==2.13.0
"$venv/bin/python" -m pip install -q -e '.[engine]' --group test
