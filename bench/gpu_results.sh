#!/usr/bin/env bash
# Measures everything that docs/performance.md says about one GPU, in one go of less than 8 minutes, and leaves it as JSON.
# usage: gpu_results.sh TROUPE FOLDER [STEP..]
#   TROUPE   the program (its libraries must be found, see LD_LIBRARY_PATH)
#   FOLDER   where ceilings.json, latency-8b.json, latency-1b.json, throughput-8b.json, ablation-8b.json, steps.trace and log.txt go
#   STEP..   only these: ceilings latency-8b latency-1b throughput-8b ablation-8b trace
# With TINY=1 the same runs with a tiny model and short loads, for a machine without a GPU (DEVICE=cpu).
# A step that fails or runs out of time is reported, and the others run all the same; the exit code is then 1.
set -uo pipefail
troupe=$(realpath "${1:?usage: gpu_results.sh TROUPE FOLDER [STEP..]}")
folder=$(mkdir -p "${2:?usage: gpu_results.sh TROUPE FOLDER [STEP..]}" && realpath "$2") || exit 2
shift 2
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(ceilings latency-8b latency-1b throughput-8b ablation-8b trace)
cd "$(dirname "$0")" || exit 2 # commands in the results name the configs from here
. ./run_step.sh

device=${DEVICE:-cuda}
big=configs/llama-3.1-8b small=configs/llama-3.2-1b
batches=1,8,32,128 context=1024 prompt=8192 decode_steps=64
requests=420 burst=128 rate=11 input=512 output=1024 seqs=160 step_tokens=256
ablation_batch=8 ablation_input=512 ablation_output=128 rounds=4
if [ "${TINY:-0}" = 1 ]; then
  big=configs/tiny small=configs/tiny
  batches=1,4 context=48 prompt=96 decode_steps=8
  requests=12 burst=2 rate=4 input=16 output=24 seqs=8 step_tokens=64
  ablation_batch=2 ablation_input=16 ablation_output=8 rounds=2
fi
dummy=(--load-format dummy --device "$device")

step() { # NAME SECONDS FLAG FILE ARGUMENTS..: FLAG FILE is where the program puts its result
  local name=$1 limit=$2 flag=$3 file=$folder/$4
  shift 4
  [[ " ${steps[*]} " == *" $name "* ]] || return 0
  echo "== $name (at most $limit s): troupe $*"
  run_step "$name" "$limit" "$file" "$troupe" "$@" "$flag" "$file"
}

run_all() {
  if [ "$device" = cuda ]; then
    command -v nvidia-smi > /dev/null && nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.draw --format=csv
    step ceilings 40 --json ceilings.json bench ceilings
  fi
  step latency-8b 110 --json latency-8b.json bench latency "$big" "${dummy[@]}" --batch-size "$batches" --context "$context" --steps "$decode_steps" --prompt-len "$prompt"
  step latency-1b 45 --json latency-1b.json bench latency "$small" "${dummy[@]}" --batch-size 1 --context "$context" --steps "$decode_steps" --prompt-len 0
  step throughput-8b 110 --json throughput-8b.json bench throughput "$big" "${dummy[@]}" --num-prompts "$requests" --burst "$burst" --request-rate "$rate" \
    --input-len "$input" --output-len "$output" --max-num-seqs "$seqs" --max-num-batched-tokens "$step_tokens" --max-model-len $((input + output + 16))
  step ablation-8b 130 --json ablation-8b.json bench ablation "$big" "${dummy[@]}" --batch-size "$ablation_batch" --input-len "$ablation_input" \
    --output-len "$ablation_output" --rounds "$rounds" --max-num-batched-tokens 2048
  step trace 40 --trace steps.trace bench latency "$big" "${dummy[@]}" --batch-size "$ablation_batch" --context "$context" --steps 16 \
    --prompt-len "$ablation_input" --repeats 2 --kernel-times
  sum_up
}

run_all 2>&1 | tee "$folder/log.txt"
exit "${PIPESTATUS[0]}"
