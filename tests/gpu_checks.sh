#!/usr/bin/env bash
# Checks what only GPUs can show, in one go: the GPU tests, the real model's text and hidden states against the CPU's, faults, and with two GPUs
# one model on both, and on two nodes whose NCCL talks through sockets. No speed is judged here (bench/gpu_results.sh, bench/pair_results.sh).
# usage: gpu_checks.sh BUILD MODEL FOLDER [STEP..]
#   BUILD    a build folder, or one with its apps/ and tests/ (their libraries must be found, see LD_LIBRARY_PATH)
#   MODEL    SmolLM2-135M-Instruct.Q4_1.gguf (deploy/fetch_model.sh prints it)
#   FOLDER   where NAME.txt, what each step said, and summary.txt go
#   STEP..   only these; without any, all below. `racecheck` runs only when it is named: it takes minutes.
# A step that fails or runs out of time is reported, and the others run all the same; the exit code is then 1. Steps that need
# two GPUs are skipped on a machine with one, and said to be; but with AS_TWO=FILE, the library one_gpu_as_two of the build, those
# whose ranks are processes share that one.
set -uo pipefail
build=$(realpath "${1:?usage: gpu_checks.sh BUILD MODEL FOLDER [STEP..]}")
model=$(realpath "${2:?usage: gpu_checks.sh BUILD MODEL FOLDER [STEP..]}")
folder=$(mkdir -p "${3:?usage: gpu_checks.sh BUILD MODEL FOLDER [STEP..]}" && realpath "$3") || exit 2
shift 3
steps=("$@")
as_two=
[ -z "${AS_TWO:-}" ] || as_two=$(realpath -e "$AS_TWO") || exit 2
cd "$(dirname "$0")" || exit 2
gpus=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null | wc -l)
[ "$gpus" -gt 0 ] || { echo "gpu_checks.sh: nvidia-smi shows no GPU on this machine" >&2; exit 2; }

troupe=$build/apps/troupe
prompt='The lighthouse keeper wrote in his diary every evening, and what he wrote on the last one was found many years later:'
failed=() begun=()
step() { # NAME GPUS SECONDS COMMAND..; GPUS: 1, 2, or 2-processes
  local name=$1 needs=$2 limit=$3 begin=$SECONDS code verdict preload=()
  shift 3
  if [ ${#steps[@]} -gt 0 ]; then
    [[ " ${steps[*]} " == *" $name "* ]] || return 0
  elif [ "$name" = racecheck ]; then
    return 0
  fi
  if [ "$needs" = 2-processes ]; then
    needs=2
    [ "$gpus" -ge 2 ] || [ -z "$as_two" ] || needs=1 preload=(env "LD_PRELOAD=$as_two")
  fi
  if [ "$gpus" -lt "$needs" ]; then
    verdict="skipped: it needs $needs GPUs"
  else
    begun+=("$name")
    timeout -k 5 "$limit" "${preload[@]}" "$@" > "$folder/$name.txt" 2>&1
    code=$?
    verdict=passed$(grep -o -m 1 'SKIPPED . [0-9]* test' "$folder/$name.txt" | sed 's/.* \([0-9]*\) test/, \1 skipped/')
    if [ $code -ne 0 ]; then
      verdict="FAILED: exit code $code"
      [ $code -eq 124 ] && verdict="FAILED: out of time after $limit s"
      failed+=("$name")
      tail -n 15 "$folder/$name.txt" | sed 's/^/    /'
    fi
  fi
  printf '%-18s %4d s  %s\n' "$name" $((SECONDS - begin)) "$verdict" | tee -a "$folder/summary.txt"
}
gtest() { # NAME GPUS SECONDS PROGRAM FILTER
  step "$1" "$2" "$3" "$build/tests/$4" --gtest_brief=1 --gtest_filter="$5"
}
text() { # NAME GPUS SECONDS TYPE: greedy text of the real model, GPU against CPU, with the margin of every place where they part
  step "$1" "$2" "$3" "$build/tests/greedy_parity" "$model" parity/prompts.txt 64 "$4" "$2"
}
layers() { # NAME TYPE OTHER: hidden states, layer by layer
  step "$1" 1 60 "$troupe" run "$model" "$prompt" --device cuda --dtype "$2" --compare-layers "$3"
}
pairs='*gpu_pair*'

: > "$folder/summary.txt"
gtest device 1 60 device_gpu_tests '*'
gtest kernels 1 240 kernels_gpu_tests '*'
gtest models 1 180 models_gpu_tests "-$pairs"
gtest collective 1 90 transport_collective_gpu_tests '-*pair*'
for type in f16 bf16; do
  text "text-$type" 1 120 $type
  for other in cpu fused prefill; do layers "layers-$type-$other" $type $other; done
done
step faults 1 150 e2e/failure_table.py "$troupe" "$model" --nodes 0 --rounds 2 --check -- \
  --isolate-devices --batch-invariant --device cuda --kv-cache-memory 2GiB
gtest models-2 2 180 models_gpu_tests "$pairs"
gtest collective-2 2 90 transport_collective_gpu_tests '*pair*'
for type in f16 bf16; do text "text-2-$type" 2 120 $type; done
step faults-2 2-processes 300 e2e/failure_table.py "$troupe" "$model" --nodes 0 --rounds 2 --check -- \
  --tp 2 --batch-invariant --device cuda --kv-cache-memory 2GiB
step nodes-2 2-processes 120 e2e/nodes_pair.py "$troupe" "$model" --device cuda
step racecheck 1 500 compute-sanitizer --tool racecheck --error-exitcode 9 "$build/tests/kernels_gpu_tests" --gtest_filter='rows/*logits*'

[ ${#begun[@]} -gt 0 ] || { echo "gpu_checks.sh: no step was begun: ${steps[*]} is none that this machine can do" >&2; exit 2; }
[ ${#failed[@]} -eq 0 ] && echo "all that ran passed; what was said is in $folder" && exit 0
echo "failed: ${failed[*]}; what was said is in $folder"
exit 1
