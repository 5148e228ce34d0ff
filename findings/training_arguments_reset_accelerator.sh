#!/usr/bin/env bash
# A transformers.TrainingArguments that is made after an accelerate.Accelerator takes that accelerator's state away.
#
# Expected: an object of settings reads the devices of the process and leaves other objects as they are.
# Seen: its creation resets accelerate's shared state, so that the accelerator made before raises AttributeError at its
# next use (num_processes, prepare, gather, ...). The message tells of a method that the program never called. In the
# other order both work. It meets programs that make their own loop with accelerate and hand TrainingArguments to
# callbacks of transformers.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'accelerate==1.15.0'
cat > "$folder/order.py" <<'PY'
import sys

import accelerate
import transformers

if sys.argv[1] == "accelerator first":
    accelerator = accelerate.Accelerator(cpu=True)
    print("before:", accelerator.num_processes)
    transformers.TrainingArguments(output_dir=sys.argv[2], use_cpu=True)
else:
    transformers.TrainingArguments(output_dir=sys.argv[2], use_cpu=True)
    accelerator = accelerate.Accelerator(cpu=True)
try:
    print("after:", accelerator.num_processes)
except AttributeError as error:
    print("after:", type(error).__name__, "-", str(error).split(".")[0])
PY
"$folder/venv/bin/python" -c 'import accelerate, transformers; print("transformers", transformers.__version__, "accelerate", accelerate.__version__)'
for order in "accelerator first" "arguments first"; do
    echo "== $order"
    "$folder/venv/bin/python" "$folder/order.py" "$order" "$folder/out" 2>/dev/null | tee "$folder/$order"
done
grep -q '^after: AttributeError - `AcceleratorState` object has no attribute `num_processes`' "$folder/accelerator first" ||
    { echo "changed: the accelerator survives"; exit 1; }
grep -q '^after: 1$' "$folder/arguments first" || { echo "changed: the other order fails"; exit 1; }
echo "as described: TrainingArguments made second breaks the accelerator, made first it does not"
