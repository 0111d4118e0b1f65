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
export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1
unset TROUPE_API_KEY
./deploy/install.sh --tests
# The end-to-end tests serve a real model and use the official OpenAI client.
export TROUPE_TEST_MODEL
TROUPE_TEST_MODEL=$(./deploy/fetch_model.sh)
export TROUPE_TEST_GGUF=$TROUPE_TEST_MODEL
client=3.57.0
if ! .cache/venv/bin/python -c "import openai, sys; sys.exit(openai.__version__ != '$client')" 2>/dev/null; then
  python3 -m venv --clear .cache/venv
  .cache/venv/bin/pip install --quiet --disable-pip-version-check "openai==$client"
fi
for preset in "${presets[@]}"; do
  ./deploy/build.sh "$preset"
  if [ "$preset" = tsan ]; then
    LD_LIBRARY_PATH=$(./deploy/build_caf_for_tsan.sh)
    export LD_LIBRARY_PATH
  fi
  ctest --preset "$preset" --parallel "$(nproc)" "$@"
done
