#!/usr/bin/env bash
# Builds the distribution's version of CAF with ThreadSanitizer and prints the folder of its libraries (.cache/caf-tsan). The packaged ones
# are not instrumented, so their atomics and mailboxes would order nothing in the sanitizer's eyes. Cheap when done before.
# usage: deploy/build_caf_for_tsan.sh
set -euo pipefail
cd "$(dirname "$0")/.."
out=$PWD/.cache/caf-tsan
version=$(dpkg-query -W -f '${source:Upstream-Version}' libcaf-dev)
stamp=$out/version
if [ "$(cat "$stamp" 2>/dev/null)" != "$version" ]; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # Source packages from the same places as the binary ones, without touching the system's own lists.
  mkdir -p "$work/lists/partial" "$work/parts"
  for file in /etc/apt/sources.list.d/{debian,ubuntu}.sources; do
    [ -e "$file" ] && sed 's/^Types: .*/Types: deb-src/' "$file" >"$work/parts/$(basename "$file")"
  done
  touch "$work/list"
  [ -e /etc/apt/sources.list ] && sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$work/list"
  apt=(apt-get -qq -o Dir::Etc::sourcelist="$work/list" -o Dir::Etc::sourceparts="$work/parts" -o Dir::State::lists="$work/lists")
  "${apt[@]}" update >&2
  # The distribution's patches are about packaging: the upstream archive is all that is needed, and the rest may be missing.
  (cd "$work" && "${apt[@]}" source --download-only actor-framework >&2) || true
  archive=$(ls "$work"/actor-framework_"$version".orig.tar.* 2>/dev/null | head -1)
  [ -n "$archive" ] || { echo "no source of CAF $version in the package lists" >&2; exit 1; }
  tar -C "$work" -xf "$archive"
  off=()
  for part in EXAMPLES UNIT_TESTS OPENCL OPENSSL PYTHON TOOLS; do off+=("-DCAF_NO_$part=yes"); done
  cmake -S "$work/actor-framework-$version" -B "$work/build" -G Ninja "${off[@]}" -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1" \
    -DCMAKE_CXX_FLAGS="-fsanitize=thread -include limits" -DCMAKE_SHARED_LINKER_FLAGS=-fsanitize=thread >"$work/log" 2>&1 &&
    cmake --build "$work/build" --parallel "$(nproc)" >>"$work/log" 2>&1 || { tail -30 "$work/log" >&2; exit 1; }
  rm -rf "$out"
  mkdir -p "$out"
  cp -a "$work"/build/lib/libcaf_*.so* "$out"
  echo "$version" >"$stamp"
fi
echo "$out"
