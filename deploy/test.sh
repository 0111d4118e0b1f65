#!/usr/bin/env bash
# Installs what is needed, builds everything and runs all tests; further arguments go to ctest.
# usage: deploy/test.sh [--sanitizers] [ctest arguments]      --sanitizers: the suite under asan+ubsan, then under tsan
set -euo pipefail
cd "$(dirname "$0")/.."
presets=(release)
if [ "${1:-}" = --sanitizers ]; then
  presets=(asan tsan)
  shift
fi
./deploy/install.sh --tests
# The end-to-end tests serve a real model and use the official OpenAI client.
export TROUPE_TEST_MODEL
TROUPE_TEST_MODEL=$(./deploy/fetch_model.sh)
if [ ! -x .cache/venv/bin/python ]; then
  python3 -m venv .cache/venv
  .cache/venv/bin/pip install --quiet --disable-pip-version-check openai==3.57.0
fi
for preset in "${presets[@]}"; do
  ./deploy/build.sh "$preset"
  ctest --preset "$preset" --parallel "$(nproc)" "$@"
done
