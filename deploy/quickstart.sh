#!/usr/bin/env bash
# From a bare machine to an answer: installs, builds, fetches a small real model, serves it, asks it over HTTP, prints the answer.
# usage: deploy/quickstart.sh [PROMPT]
set -euo pipefail
cd "$(dirname "$0")/.."
prompt=${1:-What is the capital of France? Answer in one sentence.}

./deploy/install.sh
./deploy/build.sh release troupe >&2
model=$(./deploy/fetch_model.sh)

log=$(mktemp)
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; rm -f "$log"' EXIT
build/release/apps/troupe serve "$model" --port 0 2>"$log" &
server=$!
for _ in $(seq 300); do # up to 60 s
  url=$(sed -n 's|.*listening on \(http://[^ ]*\).*|\1|p' "$log")
  if [ -n "$url" ] && curl -sf "$url/readyz" >/dev/null; then break; fi
  kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.2
done
echo "serving $(basename "$model") on $url" >&2
echo >&2
echo "> $prompt" >&2
python3 deploy/ask.py "$url" "$prompt"
