#!/usr/bin/env bash
# The teacher of TRL's SDPOTrainer is read from the student's directory: it is not the model that was given, and a resumed
# run has another one than the run that was interrupted.
#
# Expected: with its default `teacher_model_kind="ema"` the teacher starts as a copy of the student, as the trainer's
# docstring says, follows it after each step as a moving average, and goes on from its average when training resumes.
# Seen: the trainer loads the teacher from the path in the student's config. What was changed in memory before (a resized
# or merged model, a new head) is not in it, and no message says so. Checkpoints hold the student alone, so after
# `resume_from_checkpoint` the teacher is the model of the path again, any number of steps behind.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'torch==2.13.0' 'transformers==5.23.0' 'trl==1.16.0' numpy
cat > "$folder/teach.py" <<'PY'
import sys
from pathlib import Path

import torch
import transformers
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.experimental.sdpo import SDPOConfig, SDPOTrainer

print("transformers", transformers.__version__, "trl", trl.__version__)
folder = Path(sys.argv[1])
words = ["<pad>", "<end>", *"which month has the shortest day ? june december in the north".split()]
vocab = {word: number for number, word in enumerate(dict.fromkeys(words))}
core = Tokenizer(models.WordLevel(vocab, unk_token="<pad>"))
core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<end>")
tokenizer.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
torch.manual_seed(0)
LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(vocab), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=1, pad_token_id=0,
    )
).save_pretrained(folder / "model")
tokenizer.save_pretrained(folder / "model")
asked = [{"role": "user", "content": "which month has the shortest day ?"}]
rows = Dataset.from_list([{"prompt": asked, "privileged_context": "december in the north"}] * 8)


def trainer(model, steps):
    how = {"use_cpu": True, "bf16": False, "report_to": "none", "logging_steps": 100, "save_steps": 2, "max_steps": steps}
    sizes = {"num_generations": 4, "per_device_train_batch_size": 4, "max_completion_length": 8, "learning_rate": 0.01}
    return SDPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=SDPOConfig(str(folder / "run"), include_environment_feedback=True, teacher_update_rate=0.5, **how, **sizes),
        train_dataset=rows,
        processing_class=tokenizer,
    )


def head(model):
    return model.get_output_embeddings().weight.detach()


given = AutoModelForCausalLM.from_pretrained(folder / "model")
with torch.no_grad():
    given.lm_head.weight.add_(1.0)
made = trainer(given, 1)
apart = (head(made.teacher_model) - head(given)).abs().max().item()
print(f"a model changed by 1.0 in memory: its teacher differs from it by {apart:.1f}")

first = trainer(AutoModelForCausalLM.from_pretrained(folder / "model"), 2)
start = head(first.model).clone()
first.train()
second = trainer(AutoModelForCausalLM.from_pretrained(folder / "model"), 4)
averages = []


class AtStart(transformers.TrainerCallback):
    def on_train_begin(self, args, state, control, **_):
        averages.append((state.global_step, head(second.teacher_model).clone()))


second.add_callback(AtStart())
second.train(resume_from_checkpoint=True)
step, resumed = averages[0]
print(f"after step 2 the teacher had moved by {(head(first.teacher_model) - start).abs().max():.4f}")
print(f"resumed at step {step}, the teacher has moved by {(resumed - start).abs().max():.4f}")
assert apart > 0.9, "changed: the teacher is a copy of the given model"
assert (head(first.teacher_model) - start).abs().max() > 1e-3
assert step == 2
assert torch.equal(resumed, start), "changed: a resumed run has the teacher's average"
PY
"$folder/venv/bin/python" "$folder/teach.py" "$folder" 2>"$folder/log" > "$folder/seen" || { cat "$folder/seen" "$folder/log"; exit 1; }
grep -E '^(transformers|a model|after|resumed)' "$folder/seen"
echo "as described: the teacher is the model on disk, at the start and after a resume"
