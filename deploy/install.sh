#!/usr/bin/env bash
# Installs what Troupe is built with, from the distribution's packages (Debian 12, Ubuntu 24.04). Cheap when all is there.
# usage: deploy/install.sh [--tests]      --tests adds what the test suite needs
set -euo pipefail

packages=(g++ cmake ninja-build ccache pkg-config curl ca-certificates python3 python3-pip python3-venv
  libcaf-dev prometheus-cpp-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libpcre2-dev libicu-dev libsentencepiece-dev
  libssl-dev
  libgtest-dev libgmock-dev)
[ "${1:-}" = --tests ] && packages+=(prometheus binutils)

installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

missing=()
for package in "${packages[@]}"; do
  installed "$package" || missing+=("$package")
done
# Boost 1.81 or newer: Debian 12 has it beside an older default, Ubuntu 24.04's default is newer.
installed libboost1.81-dev || installed libboost1.83-dev || missing+=(boost)

if [ ${#missing[@]} -gt 0 ]; then
  echo "installing: ${missing[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive
  apt=(apt-get -qq -o DPkg::Lock::Timeout=600) # a machine that has just booted may be updating itself
  for _ in $(seq 60); do                       # the lock of the lists has no such time-out
    as_root "${apt[@]}" update && break
    sleep 5
  done
  for i in "${!missing[@]}"; do
    [ "${missing[i]}" = boost ] || continue
    if apt-cache show libboost1.81-dev >/dev/null 2>&1; then missing[i]=libboost1.81-dev; else missing[i]=libboost1.83-dev; fi
  done
  # A freshly installed Prometheus would start a service of its own.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ] && [[ " ${missing[*]} " == *" prometheus "* ]]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null
    as_root chmod +x $policy
    trap 'as_root rm -f /usr/sbin/policy-rc.d; as_root systemctl disable prometheus 2>/dev/null || true' EXIT
  fi
  as_root env DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y --no-remove --no-install-recommends "${missing[@]}" >/dev/null
fi
