"""The model card of a reward model: what it is, what it learned from, how good it is, and how to use it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text2grad.config import Recipe

_CARD = """---
{base_line}library_name: {library}
pipeline_tag: text-generation
tags:
- text2grad
- reward-model
- critique
---

# {name}

A generative reward model for [Text2Grad](https://arxiv.org/abs/2505.22338). It reads a prompt and a response and
writes JSON: {words}{marks}, which become a
reward on each token of the response.

```python
from text2grad import Example, GenerativeRewardModel

critic = GenerativeRewardModel.load("{load}")
(critique,) = critic([Example("a prompt")], ["the response to judge"])
print(critique.feedback, critique.spans)
```

In the loop: `text2grad train RECIPE.toml --set critic.model={load}`. It is asked as it was when it
learned, by the {prompt_format} form of its prompt; `reward_model.json` says so, and `load` reads it.

## What it learned from

| annotations | number |
|---|---|
{counts}

The base model is {base}{lora}. The loss stood on what it writes alone; {steps:,} steps of {batch_size} annotations
at a peak learning rate of {lr:g} ({optimizer}), and the weights are those of step {best_step:,}, the best measured.

## How good it is

Critiques {decoded}{constrained} for {responses:,} held-out responses; it never learned
from {unseen}. Precision, recall and F1 are those of single tokens, beside the annotators' spans.

| held out | |
|---|---|
{measured}

A critic that is right about half of what it marks still teaches, but a policy finds its mistakes: measure it on the
responses of your own policy before you rely on it.
"""

_MARKS = {
    "spans": "quotes of what is good and of what is poor about the response, word for word",
    "dense": "a label for each word of the response, good, poor or neither",
    "scores": "a list of the response's words, each with a score of 1, -1 or 0",
}

_COUNTS = {
    "learned": "learned from",
    "target_tokens": "tokens of what it learned to write, all together",
    "too_long": "left out, longer than the limit",
    "unreadable": "left out, without a critique that could be read",
    "shared_prompts": "left out, of a prompt (or, if responses are held out, a response) that is held out",
    "held_out": "held out",
    "unaligned": "held out, but not measured: the tokenizer changes their text",
}


def model_card(recipe: Recipe, results: Mapping[str, Any], *, name: str, adapter: bool) -> str:
    """Return the card.

    Args:
        recipe: [model] and [reward_model] of the run.
        results: `counts`, `measured`, `best_step`, `steps` and `prompt_format`, as in results.json.
        name: OWNER/NAME on the hub, or the directory's.
        adapter: True for a LoRA adapter, which needs its base model.
    """
    settings, model = recipe.reward_model, recipe.model
    constrained = settings.form == "spans" and recipe.critic.constrain is not False
    votes = recipe.critic.votes or 1
    base = Path(model.path).name if Path(model.path).exists() else model.path  # where it lay here is nobody's business
    return _CARD.format(
        base_line="" if Path(model.path).exists() else f"base_model: {json.dumps(base)}\n",
        library="peft" if adapter else "transformers",
        name=name.rpartition("/")[2],
        load=name,
        words="a critique in words, then " if settings.write_feedback else "",
        marks=_MARKS[settings.form],
        prompt_format=results["prompt_format"],
        counts="\n".join(f"| {text} | {results['counts'][key]:,} |" for key, text in _COUNTS.items()),
        base=f"`{base}`",
        lora=f", with LoRA of rank {model.lora_r} and α = {model.lora_alpha}" if model.lora_r else ", trained in full",
        steps=results["steps"],
        batch_size=settings.batch_size,
        lr=settings.lr,
        optimizer=settings.optimizer,
        best_step=results["best_step"],
        decoded=f"drawn, {votes} for each response, and put to the vote," if votes > 1 else "decoded greedily",
        unseen="their prompts" if settings.unseen == "prompts" else "them, but from others to the same prompts",
        constrained=" and constrained to whole JSON and verbatim quotes" if constrained else "",
        responses=results["counts"]["held_out"] - results["counts"]["unaligned"],
        measured="\n".join(f"| {metric} | {value:.3f} |" for metric, value in results["measured"].items()),
    )
