#!/usr/bin/env bash
# Measures everything that docs/performance.md says about two GPUs, in one go, and leaves it as JSON. The limits of its steps add up to 11 minutes.
# usage: pair_results.sh TROUPE FOLDER [STEP..]
#   TROUPE   the program (its libraries must be found, see LD_LIBRARY_PATH)
#   FOLDER   where NAME.json of each step and log.txt go
#   STEP..   only these: ceilings 8b-tp1 8b-tp2 70b-tp2 throughput-dp1 throughput-dp2 throughput-pp2 kills-kept kills-cold
# With TINY=1 the same runs with a tiny model and short loads, for a machine without GPUs (DEVICE=cpu).
# A step that fails or runs out of time is reported, and the others run all the same; the exit code is then 1.
set -uo pipefail
troupe=$(realpath "${1:?usage: pair_results.sh TROUPE FOLDER [STEP..]}")
folder=$(mkdir -p "${2:?usage: pair_results.sh TROUPE FOLDER [STEP..]}" && realpath "$2") || exit 2
shift 2
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(ceilings 8b-tp1 8b-tp2 70b-tp2 throughput-dp1 throughput-dp2 throughput-pp2 kills-kept kills-cold)
cd "$(dirname "$0")" || exit 2 # commands in the results name the configs from here
. ./run_step.sh

device=${DEVICE:-cuda}
big=configs/llama-3.1-8b huge=configs/llama-3.1-70b
batches=1,8,32,128 huge_batches=1,8,32 context=1024 prompt=8192 decode_steps=64
requests=256 input=512 output=256 seqs=128 step_tokens=1024 length=1024
kills=10 cold_kills=3 streams=8 tokens=128
if [ "${TINY:-0}" = 1 ]; then
  big=configs/tiny huge=configs/tiny
  batches=1,4 huge_batches=1,4 context=48 prompt=96 decode_steps=8
  requests=8 input=16 output=24 seqs=8 step_tokens=64 length=256
  kills=2 cold_kills=1 streams=2 tokens=48
fi
dummy=(--load-format dummy --device "$device")
isolated=() kept=() # as GPUs are without asking
[ "$device" = cuda ] || isolated=(--isolate-devices) kept=(--isolate-devices --keep-weights)

step() { # NAME SECONDS PROGRAM ARGUMENTS..: which leaves NAME.json
  local name=$1 limit=$2
  shift 2
  [[ " ${steps[*]} " == *" $name "* ]] || return 0
  echo "== $name (at most $limit s): $*"
  run_step "$name" "$limit" "$folder/$name.json" "$@"
}
bench() { # NAME SECONDS KIND ARGUMENTS..
  step "$1" "$2" "$troupe" bench "${@:3}" --json "$folder/$1.json"
}
latency() { # NAME SECONDS MODEL RANKS BATCHES PROMPT
  bench "$1" "$2" latency "$3" "${dummy[@]}" --tp "$4" --batch-size "$5" --context "$context" --steps "$decode_steps" --prompt-len "$6"
}
throughput() { # NAME SECONDS REPLICAS STAGES: as many requests for each GPU
  bench "$1" "$2" throughput "$big" "${dummy[@]}" --dp "$3" --pp "$4" --num-prompts $(($3 * $4 * requests)) --request-rate inf \
    --input-len "$input" --output-len "$output" --max-num-seqs $(($4 * seqs)) --max-num-batched-tokens "$step_tokens" --max-model-len "$length"
}
kills() { # NAME SECONDS KILLS FLAGS..
  step "$1" "$2" ./kill_worker.py "$troupe" "$huge" --json "$folder/$1.json" --kills "$3" --streams "$streams" --tokens "$tokens" -- \
    "${dummy[@]}" --tp 2 --max-num-seqs "$seqs" --max-model-len "$length" "${@:4}"
}

run_all() {
  if [ "$device" = cuda ]; then
    command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.draw --format=csv
    bench ceilings 40 ceilings --tp 2
  fi
  latency 8b-tp1 90 "$big" 1 "$batches" "$prompt"
  latency 8b-tp2 90 "$big" 2 "$batches" "$prompt"
  latency 70b-tp2 90 "$huge" 2 "$huge_batches" "$prompt"
  throughput throughput-dp1 60 1 1
  throughput throughput-dp2 60 2 1
  throughput throughput-pp2 60 1 2
  kills kills-kept 120 "$kills" "${kept[@]}"
  kills kills-cold 90 "$cold_kills" --no-keep-weights --no-keep-kv "${isolated[@]}"
  sum_up
}

run_all 2>&1 | tee "$folder/log.txt"
exit "${PIPESTATUS[0]}"
