# shellcheck shell=bash disable=SC2154
# Sourced by the *_results.sh: runs their steps one by one and remembers what fell short. Needs $folder, where results go.
failed=() skipped=() # names of steps

run_step() { # NAME SECONDS FILE COMMAND..: which leaves FILE. What fails, runs out of time or leaves nothing is reported, and added to `failed`
  local name=$1 limit=$2 file=$3 begin=$SECONDS code
  shift 3
  rm -f "$file"
  timeout -k 5 "$limit" "$@"
  code=$?
  [ $code -eq 124 ] && echo "!! $name: out of time after $limit s"
  [ $code -ne 0 ] && echo "!! $name: exit code $code" && failed+=("$name")
  [ $code -eq 0 ] && [ ! -s "$file" ] && echo "!! $name: no result" && failed+=("$name")
  echo "== $name: $((SECONDS - begin)) s"
}

sum_up() { # the last lines; 1 where a step failed
  echo "== all: $SECONDS s; results:" && (cd "$folder" && ls -l)
  [ ${#skipped[@]} -gt 0 ] && echo "!! for another call: ${skipped[*]}"
  [ ${#failed[@]} -eq 0 ] && echo "== every step that was begun went well" && return 0
  echo "!! failed: ${failed[*]}"
  return 1
}
