#!/usr/bin/env bash
# A LoRA adapter that peft starts by fast PiSSA ("pissa_niter_N") is another model after saving and loading.
#
# Expected: PeftModel.from_pretrained on the same base gives the logits of the model that was saved, as with every other
# start of LoRA; "pissa", the same method with an exact decomposition, does.
# Seen: PiSSA takes the adapter's first factors out of the base weights. Nothing of the changed base is saved; loading
# decomposes the base again and puts the saved factors beside that rest. The fast variant draws a random projection for
# its decomposition, so the rest is another one each time, and the logits move although every file is intact. peft gives
# no warning. It meets whoever trains with the fast variant because a large model makes the exact one slow, and loads
# the adapter in another process.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'peft==0.21.0'
cat > "$folder/reload.py" <<'PY'
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

start, folder = sys.argv[1:]
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
)
base = AutoModelForCausalLM.from_config(config)
for weight in base.parameters():
    if weight.ndim > 1:
        torch.nn.init.normal_(weight, std=0.3)
base.save_pretrained(f"{folder}/base")
ids = torch.arange(1, 17)[None]
adapted = get_peft_model(base, LoraConfig(r=4, init_lora_weights=start, target_modules=["q_proj", "up_proj"])).eval()
adapted.save_pretrained(f"{folder}/adapter")
loaded = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(f"{folder}/base"), f"{folder}/adapter").eval()
with torch.no_grad():
    saved, again = (model(ids).logits.log_softmax(-1) for model in (adapted, loaded))
moved = float((saved - again).abs().max())
print(f"{start}: {'another model' if moved > 0.1 else 'the same model'}, {moved:.1g} nats")
PY
"$folder/venv/bin/python" -c 'import peft, transformers; print("transformers", transformers.__version__, "peft", peft.__version__)'
for start in pissa pissa_niter_4; do
    mkdir -p "$folder/$start"
    "$folder/venv/bin/python" "$folder/reload.py" "$start" "$folder/$start" 2>/dev/null | tee "$folder/$start.txt"
done
grep -q '^pissa: the same model' "$folder/pissa.txt" || { echo "changed: exact PiSSA does not come back"; exit 1; }
grep -q '^pissa_niter_4: another model' "$folder/pissa_niter_4.txt" || { echo "changed: fast PiSSA comes back"; exit 1; }
echo "as described: the exact start comes back, the fast one is another model"
