#!/usr/bin/env bash
# Create the peers' environments below DIR: DIR/opacus, DIR/jaxprivacy and DIR/diffprivlib.
# Usage: setup.sh DIR        (PYTHON names the interpreter to build them with; default python3)
set -euo pipefail

if [ $# -ne 1 ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
dir=$1
python=${PYTHON:-python3}
mkdir -p "$dir"

"$python" -m venv "$dir/opacus"
"$dir/opacus/bin/pip" install torch==2.13.0  # first and alone, so that opacus finds it and picks no other
"$dir/opacus/bin/pip" install opacus==1.6.0
"$dir/opacus/bin/python" - <<'PY'
from importlib.metadata import version

found = version("torch").split("+")[0]
assert found == "2.13.0", f"torch {found} was installed, not 2.13.0"
PY

"$python" -m venv "$dir/jaxprivacy"
"$dir/jaxprivacy/bin/pip" install jax==0.10.2 jax-privacy==2.0.0

# diffprivlib fails with later versions of scikit-learn than 1.7.
"$python" -m venv "$dir/diffprivlib"
"$dir/diffprivlib/bin/pip" install diffprivlib==0.6.6 scikit-learn==1.6.1
