#!/usr/bin/env bash
# One end-to-end test. TROUPE_TEST_MODEL names the .gguf file (deploy/fetch_model.sh prints it), TROUPE_TEST_PYTHON a Python with openai.
# usage: e2e.sh TROUPE NAME
set -euo pipefail
cd "$(dirname "$0")"
troupe=$1
model=${TROUPE_TEST_MODEL:?must name a .gguf file; deploy/test.sh fetches one}
python=${TROUPE_TEST_PYTHON:-../../.cache/venv/bin/python}

TROUPE_SOAK_TOLERANCE_MIB=${TROUPE_SOAK_TOLERANCE_MIB:-64} # by which memory may grow

serving() { python3 with_server.py "$troupe" "$model" --max-model-len 2048 "$@"; }

case $2 in
  api_cases) serving -- python3 api_cases.py {url} ;;
  openai_client) serving -- "$python" openai_client.py {url} {model} ;;
  openai_client_with_keys) serving --api-key sesame -- "$python" openai_client.py {url} {model} --api-key sesame ;;
  prometheus) serving -- python3 prometheus.py --url {url} ;;
  bench_serve) serving -- "$troupe" bench serve --url {url} --num-prompts 20 --request-rate 20 --input-len 32 --output-len 16 ;;
  keeper) python3 keeper.py "$troupe" "$model" ;;
  upgrade) python3 upgrade.py "$troupe" "$model" ;;
  kept_kv) python3 kept_kv.py "$troupe" "$model" ;;
  standby) python3 standby.py "$troupe" "$model" ;;
  recovery) python3 recovery.py "$troupe" "$model" ;;
  failure_table) python3 failure_table.py "$troupe" "$model" --nodes 0 --rounds 1 --check -- --tp 3 --isolate-devices ;;
  failure_table_nodes) python3 failure_table.py "$troupe" "$model" --rounds 1 --check ;;
  speculation) python3 speculation.py "$troupe" "$model" ;;
  nodes) python3 nodes.py "$troupe" "$model" ;;
  nodes_pair) python3 nodes_pair.py "$troupe" "$model" ;;
  node_upgrade) python3 node_upgrade.py "$troupe" "$model" ;;
  leftovers) python3 leftovers.py "$troupe" "$model" ;;
  drain) python3 drain.py "$troupe" "$model" ;;
  soak) python3 soak.py "$troupe" "$model" --seconds 15 --tolerance-mib "$TROUPE_SOAK_TOLERANCE_MIB" ;;
  soak_with_kills) python3 soak.py "$troupe" "$model" --seconds 24 --kill-every 6 --tolerance-mib "$TROUPE_SOAK_TOLERANCE_MIB" ;;
  run) [ -n "$("$troupe" run "$model" "What is the capital of France? Answer in one sentence." --max-tokens 16 | grep Paris)" ] ;;
  simulate) python3 simulate.py "$troupe" "$model" ;;
  trace) python3 trace.py "$troupe" "$model" ;;
  benches) python3 benches.py "$troupe" ;;
  pair_benches) python3 pair_benches.py "$troupe" ;;
  scaling_benches) python3 scaling_benches.py "$troupe" ;;
  inspect) "$troupe" inspect "$model" | grep -q Q4_1 ;;
  *) echo "no test named $2" >&2; exit 2 ;;
esac
