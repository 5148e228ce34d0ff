#!/usr/bin/env bash
# On a CPU a model whose weights are frozen reads prompts slower than the same model with weights that may be trained.
#
# Expected: without gradients (`torch.no_grad`, or generate()) it makes no difference whether parameters have
# requires_grad. Of a batch of prompts only the last state of each goes through the output layer, which costs one product
# of [rows, hidden] and [hidden, vocabulary].
# Seen: the last states are a slice, which is not contiguous. For such a tensor of three dimensions torch makes one
# product only if the matrix requires a gradient; if it does not, torch makes a batched product, one row with the whole
# matrix at a time. In fp32 that costs a few times as much; in bf16 the matrix is copied for each row as well, and takes
# tens of times as long. Every LoRA adapter freezes its base, so generate() of an adapter pays it, as do reference models
# and judges. Large vocabularies and short prompts feel it most. `logits_to_keep=torch.tensor([length - 1])` in place of
# the number 1 gives equal logits by a single product.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' numpy
cat > "$folder/read.py" <<'PY'
import time

import torch
import transformers
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
print("torch", torch.__version__, "transformers", transformers.__version__)
ROWS, LENGTH, WORDS = 8, 48, 32_000
config = LlamaConfig(
    vocab_size=WORDS, hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, eos_token_id=None
)
prompts = torch.randint(3, WORDS, (ROWS, LENGTH))


def generate(model):
    return model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=1, do_sample=False)


def products(model):
    """Return the names of the products with the output layer in a call of generate()."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        generate(model)
    of_layer = [event for event in seen.events() if WORDS in [size for shape in event.input_shapes for size in shape]]
    return {event.name for event in of_layer if event.name in ("aten::bmm", "aten::mm", "aten::addmm")}


def seconds(model):
    """Return processor seconds of generate(), the least of five calls."""
    times = []
    for _ in range(5):
        started = time.process_time()
        generate(model)
        times.append(time.process_time() - started)
    return min(times)


for dtype in (torch.float32, torch.bfloat16):
    model = LlamaForCausalLM(config).eval().to(dtype)
    trainable, took, tokens = products(model), seconds(model), generate(model)
    model.requires_grad_(False)
    frozen, ratio = products(model), seconds(model) / took
    assert torch.equal(generate(model), tokens)
    print(f"{dtype}: trainable {sorted(trainable)}, frozen {sorted(frozen)}, which takes {ratio:.1f} times as long")
    assert "aten::bmm" not in trainable, "changed: a trainable output layer is read once for each row, too"
    assert "aten::bmm" in frozen, "changed: a frozen output layer is read once for all rows"
    assert dtype is torch.float32 or ratio > 2, "changed: in bf16 a frozen output layer costs as much as a trainable one"
PY
"$folder/venv/bin/python" "$folder/read.py"
echo "as described: a frozen output layer is read once for each row of a batch"
