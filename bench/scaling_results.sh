#!/usr/bin/env bash
# Measures how Troupe scales over the GPUs of one machine, the most telling figures first, and leaves them as JSON.
# usage: scaling_results.sh TROUPE FOLDER --gpus N [--seconds S] [--plan] [STEP..]
#   TROUPE    the program (its libraries must be found, see LD_LIBRARY_PATH)
#   FOLDER    where NAME.json of each step, predicted.json and log.txt go
#   --gpus    how many to scale over: 1, 2, 4 or 8
#   --seconds in all (520). A step that would not fit into what is left is not begun, and named at the end
#   --plan    only print the steps and the seconds that each is expected to take
#   STEP..    only these. A later call with the rest and the same folder goes on where the time ran out
# With TINY=1 the same with a tiny model and short loads, for a machine without GPUs (DEVICE=cpu).
# A step that fails or runs out of time is reported, and the others run all the same; the exit code is then 1.
set -uo pipefail
usage="usage: scaling_results.sh TROUPE FOLDER --gpus N [--seconds S] [--plan] [STEP..]"
troupe=$(realpath "${1:?$usage}")
folder=$(mkdir -p "${2:?$usage}" && realpath "$2") || exit 2
shift 2
gpus='' budget=520 plan_only=0 wanted=()
while [ $# -gt 0 ]; do
  case $1 in
    --gpus) gpus=${2:?$usage} && shift ;;
    --seconds) budget=${2:?$usage} && shift ;;
    --plan) plan_only=1 ;;
    -*) echo "$usage" >&2 && exit 2 ;;
    *) wanted+=("$1") ;;
  esac
  shift
done
[[ $gpus =~ ^[1248]$ ]] || { echo "--gpus must be 1, 2, 4 or 8" >&2 && exit 2; }
cd "$(dirname "$0")" || exit 2 # commands in the results name the configs from here
. ./run_step.sh

device=${DEVICE:-cuda}
big=configs/llama-3.1-8b huge=configs/llama-3.1-70b tiny=configs/tiny
batches=1,8,32,128 context=1024 prompt=8192 decode_steps=48 split_steps=16
rate=24 requests=200 burst=320 input=512 output=128 seqs=128 step_tokens=1024 length=1024
huge_rate=4 huge_requests=40 huge_burst=96
kills=3 streams=8 tokens=256 same=48
if [ "${TINY:-0}" = 1 ]; then
  big=configs/tiny huge=configs/tiny
  batches=1,4 context=48 prompt=96 decode_steps=8
  rate=8 requests=8 burst=8 input=16 output=8 seqs=8 step_tokens=64 length=256
  huge_rate=8 huge_requests=6 huge_burst=6
  kills=1 streams=2 tokens=48 same=24
fi
dummy=(--load-format dummy --device "$device")
isolated=() exact=()
[ "$device" = cuda ] || isolated=(--isolate-devices --keep-weights --threads 1) exact=(--exact)
export NCCL_NVLS_ENABLE=0 # multicast over NVLink stays off

known=()
step() { # NAME EXPECTED PROGRAM ARGUMENTS..: which leaves NAME.json. EXPECTED: seconds; three times as many are allowed
  local name=$1 expected=$2 limit left
  shift 2
  known+=("$name")
  [ ${#wanted[@]} -eq 0 ] || [[ " ${wanted[*]} " == *" $name "* ]] || return 0
  [ $plan_only = 1 ] && printf '%-16s %4s s  %s\n' "$name" "$expected" "$*" && return 0
  left=$((budget - SECONDS)) limit=$((3 * expected))
  [ $limit -lt 20 ] && limit=20
  [ $limit -gt $left ] && limit=$left
  [ "$expected" -gt $left ] && echo "!! $name: not begun, $expected s are more than the $left s left" && skipped+=("$name") && return 0
  echo "== $name (expected $expected s, at most $limit s): $*"
  run_step "$name" "$limit" "$folder/$name.json" "$@"
}
latency() { # NAME EXPECTED MODEL TP PP STEPS FLAGS..
  step "$1" "$2" "$troupe" bench latency "$3" "${dummy[@]}" --tp "$4" --pp "$5" --batch-size "$batches" --context "$context" --steps "$6" \
    --prompt-len "$prompt" --repeats 3 --json "$folder/$1.json" "${@:7}"
}
# Without graphs' kernels cut apart by events a step is as it is; with them its parts can be told. On the CPU one run tells both.
split() { [ "$device" = cpu ] || latency "split-$1" "$2" "$3" "$4" 1 "$split_steps" --kernel-times; }
big_tp() { latency "8b-tp$1" "$2" "$big" "$1" 1 "$decode_steps"; }
huge_tp() { latency "70b-tp$1" "$2" "$huge" "$1" 1 "$decode_steps"; }
serve() { # NAME EXPECTED MODEL RATE REQUESTS BURST FLAGS..
  step "$1" "$2" ./serve_under_load.py "$troupe" "$3" --json "$folder/$1.json" --rate "$4" --requests "$5" --burst "$6" --input "$input" \
    --output "$output" --ttft 500 --itl 30 -- "${dummy[@]}" --max-num-seqs "$seqs" --max-num-batched-tokens "$step_tokens" \
    --max-model-len "$length" --max-queue 8192 "${@:7}" "${isolated[@]}"
}
replicas() { serve "8b-dp$1" "$2" "$big" $(($1 * rate)) $(($1 * requests)) $(($1 * burst)) --dp "$1"; }
huge_replicas() { serve "70b-tp$1-dp$2" "$3" "$huge" $(($2 * huge_rate)) $(($2 * huge_requests)) $(($2 * huge_burst)) --tp "$1" --dp "$2"; }
kill_one() { # TP EXPECTED
  step "kill-70b-tp$1" "$2" ./kill_worker.py "$troupe" "$huge" --json "$folder/kill-70b-tp$1.json" --kills "$kills" --streams "$streams" --tokens "$tokens" -- \
    "${dummy[@]}" --tp "$1" --max-num-seqs "$seqs" --max-model-len "$length" "${isolated[@]}"
}
same_tokens() { # EXPECTED LAYOUTS
  step tokens "$1" ./same_tokens.py "$troupe" "$tiny" --json "$folder/tokens.json" --layouts "$2" --tokens "$same" "${exact[@]}" -- \
    "${dummy[@]}" --dummy-dtype f32 --max-model-len 256
}
ceilings() { # or on a CPU what a step costs, for the simulator
  if [ "$device" = cpu ]; then
    step device-table 10 "$troupe" bench calibrate "$big" "${dummy[@]}" --max-num-seqs "$seqs" --max-num-batched-tokens "$step_tokens" \
      --max-model-len "$length" --threads 1 --seconds 1 -o "$folder/device-table.json"
    return
  fi
  local group=(--tp "$gpus")
  [ "$gpus" = 1 ] && group=()
  step ceilings 15 "$troupe" bench ceilings "${group[@]}" --json "$folder/ceilings.json"
}

# The ends of the scale come before what lies between. What needs more GPUs than there are is for another machine.
run_all() {
  case $gpus in
    1) ceilings; big_tp 1 18; split 8b-tp1 18 "$big" 1; replicas 1 30 ;;
    2)
      ceilings; big_tp 1 18; big_tp 2 15; huge_tp 2 40; split 8b-tp2 15 "$big" 2; split 70b-tp2 35 "$huge" 2
      replicas 1 30; replicas 2 32; kill_one 2 40; same_tokens 25 2x1,1x2; latency 8b-pp2 20 "$big" 1 2 "$decode_steps" ;;
    4)
      ceilings; huge_tp 4 30; big_tp 4 15; split 70b-tp4 28 "$huge" 4; replicas 4 35; kill_one 4 40; big_tp 1 18; huge_tp 2 40
      replicas 1 30; huge_replicas 2 2 45; latency 70b-tp2-pp2 40 "$huge" 2 2 "$decode_steps"; big_tp 2 15; replicas 2 32
      split 8b-tp4 15 "$big" 4; same_tokens 35 2x1,4x1,1x2,2x2 ;;
    8)
      ceilings; huge_tp 8 30; big_tp 8 15; split 70b-tp8 28 "$huge" 8; replicas 8 40; huge_tp 4 30; kill_one 4 40; big_tp 1 18
      replicas 1 30; huge_replicas 2 4 50; latency 70b-tp4-pp2 35 "$huge" 4 2 "$decode_steps"; replicas 4 35; big_tp 4 15; huge_tp 2 40
      replicas 2 32; big_tp 2 15; split 8b-tp8 15 "$big" 8; same_tokens 35 2x1,4x1,1x2,2x2 ;;
  esac
  for name in "${wanted[@]}"; do
    [[ " ${known[*]} " == *" $name "* ]] || { echo "!! no step is named $name; there are ${known[*]}" && failed+=("$name"); }
  done
  [ $plan_only = 1 ] && return ${#failed[@]}
  ./scaling_predict.py "$troupe" "$folder" || failed+=(predicted)
  sum_up
}

[ $plan_only = 1 ] && { run_all; exit; }
run_all 2>&1 | tee -a "$folder/log.txt"
exit "${PIPESTATUS[0]}"
