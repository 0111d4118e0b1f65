#!/usr/bin/env bash
# From a bare machine to an answer: installs, builds, fetches a small real model, serves it, asks it over HTTP, prints the answer.
# usage: deploy/quickstart.sh [PROMPT]
set -euo pipefail
cd "$(dirname "$0")/.."
prompt=${1:-What is the capital of France? Answer in one sentence.}

./deploy/install.sh
./deploy/build.sh release troupe >&2
model=$(./deploy/fetch_model.sh)

export no_proxy=127.0.0.1 NO_PROXY=127.0.0.1
unset TROUPE_API_KEY
server=
ready=
log=$(mktemp)
trap '[ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true; rm -f "$log"' EXIT
build/release/apps/troupe serve "$model" --port 0 2>"$log" &
server=$!
for _ in $(seq 300); do # up to 60 s
  url=$(sed -n 's|.*listening on \(http://[^ ]*\).*|\1|p' "$log")
  if [ -n "$url" ] && curl -sf --max-time 2 "$url/readyz" >/dev/null; then
    ready=1
    break
  fi
  kill -0 "$server" 2>/dev/null || { cat "$log" >&2; exit 1; }
  sleep 0.2
done
[ -n "$ready" ] || { echo "not ready within 60 s; the server's log:" >&2; cat "$log" >&2; exit 1; }
echo "serving $(basename "$model") on $url" >&2
echo >&2
echo "> $prompt" >&2
python3 deploy/ask.py "$url" -- "$prompt" || { tail -n 20 "$log" >&2; exit 1; }
