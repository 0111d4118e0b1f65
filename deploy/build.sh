#!/usr/bin/env bash
# Configures and builds one preset (default: release). Cheap when nothing changed.
# usage: deploy/build.sh [PRESET] [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
log=build/$preset-configure.log
mkdir -p build
cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build --preset "$preset" --parallel "$(nproc)" ${1:+--target "$@"}
