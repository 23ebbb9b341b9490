#!/usr/bin/env bash
# Make the virtual environment and install gpuwatch and its engine into it. Run by `make setup`.
set -euo pipefail
venv=${1:-.venv}

if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "gpuwatch needs Python 3.11 or newer; python3 here is $(python3 -V 2>&1 || echo missing)" >&2
  exit 2
fi
if ! [ -x "$venv/bin/python" ] && ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "python3-venv is missing; run: sudo apt-get install python3-venv" >&2
    exit 2
  fi
  echo "installing the Debian package python3-venv"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
fi

[ -x "$venv/bin/pip" ] || python3 -m venv --clear "$venv"  # --clear: an interrupted run leaves one without pip
pip=("$venv/bin/python" -m pip install -q --disable-pip-version-check)
"${pip[@]}" -U "pip>=25.1"  # the first that knows dependency groups
# Pinned, so that a CPU wheel at hand is taken. Elsewhere set PIP_EXTRA_INDEX_URL to PyTorch's CPU index, or pip fetches CUDA too.
"$venv/bin/python" -c 'import torch' 2>/dev/null || "${pip[@]}" torch==2.13.0
"${pip[@]}" -e '.[engine]'
