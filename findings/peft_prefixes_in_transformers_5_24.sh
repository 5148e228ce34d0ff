#!/usr/bin/env bash
# A trained prefix of peft stops working when transformers goes from 5.23 to 5.24: `generate` writes what the base model
# writes, without an error, and a classifier refuses its forward pass.
#
# Expected: a prefix-tuned model writes, greedily, the same tokens by `generate` as by choosing the likeliest token of
# its forward pass again and again, with every transformers that peft admits (it names no upper bound); and a prefix
# that a classifier was trained with can be used.
# Seen: transformers 5.24 renamed the argument `past_key_values` of every forward pass, and the entry of the arguments
# that `generate` carries from step to step, to `cache`. A decorator still takes the old name, so direct calls work. But
# peft 0.21.2 puts the prefix under the old name into what `generate` carries, where nobody looks: the prefix is left
# out, and the text is exactly that of the model without it. For classifiers peft looks for the old name in the
# signature, does not see it, and says that the model does not support prefix tuning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
cat > "$folder/prefix.py" <<'PY'
import warnings

import torch
import transformers
from peft import PrefixTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaConfig

warnings.simplefilter("ignore")
config = LlamaConfig(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    pad_token_id=0,
    eos_token_id=None,
)


def prefixed(auto, task):
    torch.manual_seed(0)
    base = auto.from_config(config)
    for weight in base.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.3)
    model = get_peft_model(base, PrefixTuningConfig(task_type=task, num_virtual_tokens=4)).eval()
    for weight in model.parameters():
        if weight.requires_grad:  # the prefix, as if trained
            torch.nn.init.normal_(weight)
    return model


ids = torch.arange(1, 9)[None]
model = prefixed(AutoModelForCausalLM, "CAUSAL_LM")
stepwise = ids
with torch.no_grad():
    for _ in range(8):
        last = model(input_ids=stepwise, attention_mask=torch.ones_like(stepwise)).logits[:, -1:]
        stepwise = torch.cat([stepwise, last.argmax(-1)], 1)
how = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": 8}
written = model.generate(**how)
with model.disable_adapter():
    bare = model.generate(**how)
if written.equal(stepwise) and not written.equal(bare):
    answer = "with the prefix"
else:
    answer = "as without the prefix" if written.equal(bare) else "neither"
try:
    prefixed(AutoModelForSequenceClassification, "SEQ_CLS")(input_ids=ids, attention_mask=torch.ones_like(ids))
    classifier = "runs"
except ValueError as error:
    classifier = f"refuses: {error}"
print(f"transformers {transformers.__version__}: generate writes {answer}; the classifier {classifier}")
PY
for version in 5.23.0 5.24.0; do
    "$folder/venv/bin/pip" install --quiet 'torch==2.13.0' "transformers==$version" 'peft==0.21.2'
    "$folder/venv/bin/python" "$folder/prefix.py" 2>/dev/null | tee "$folder/$version.txt"
done
grep -q 'generate writes with the prefix; the classifier runs' "$folder/5.23.0.txt" || { echo "changed: 5.23"; exit 1; }
grep -q 'generate writes as without the prefix; the classifier refuses' "$folder/5.24.0.txt" ||
    { echo "changed: 5.24 takes the prefix"; exit 1; }
echo "as described: peft 0.21.2 loses its prefixes from transformers 5.24 on"
