#!/usr/bin/env bash
# Builds every fuzz target with clang and runs each for a while, two at a time.
# usage: tests/fuzz/run.sh [SECONDS]      default 60; findings land in build/fuzz/findings
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-60}
mkdir -p build/fuzz/findings
cmake --preset fuzz >build/fuzz/configure.log
names=$(cd tests/fuzz && ls ./*_fuzz.cpp | sed 's|./||; s|\.cpp||')
# shellcheck disable=SC2086
cmake --build --preset fuzz --target $names

run_one() {
  name=$1 seconds=$2
  corpus=build/fuzz/corpus/$name
  seeds=tests/fuzz/seeds/${name%_fuzz}
  mkdir -p "$corpus"
  [ -d "$seeds" ] || seeds=
  if build/fuzz/tests/fuzz/"$name" "$corpus" $seeds -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=16384 \
    -artifact_prefix=build/fuzz/findings/"$name"- >build/fuzz/"$name".log 2>&1; then
    echo "$name: $(grep -oE 'Done [0-9]+ runs in [0-9]+ second' build/fuzz/"$name".log), no finding"
  else
    echo "$name: FINDING, see build/fuzz/$name.log"
    return 1
  fi
}
export -f run_one
# shellcheck disable=SC2086
printf '%s\n' $names | xargs -P 2 -I{} bash -c 'run_one {} '"$seconds"
