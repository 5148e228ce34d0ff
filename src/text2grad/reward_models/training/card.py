"""The model card of a generative reward model: training data, settings, held-out measurements, usage."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text2grad.config import Recipe
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.writing import FORMS

_MARKS = {
    "spans": "verbatim quotes of the positive and of the negative parts of the response",
    "labelled_spans": "verbatim quotes of the response, each with its label, and a number for the whole response",
    "tagged_words": "the response's words, each with a sign (positive, negative, neither), and a number for the whole "
    "response",
}

_COUNTS = {
    "learned": "trained on",
    "target_tokens": "tokens of all critiques trained on",
    "too_long": "left out, longer than the limit",
    "unreadable": "left out, without a critique that could be parsed",
    "shared_prompts": "left out, of a prompt that is held out",
    "held_out": "held out, for the measurements below",
    "unaligned": "of these not measured: the tokenizer changes their text",
}


def model_card(results: Mapping[str, Any], format: CritiqueFormat, recipe: Recipe, *, adapter: bool) -> str:
    """Return the text of the card, which names no directory of this machine.

    Args:
        results: `counts`, `measured`, `best_step`, `steps` and `prompt_format`, as in results.json.
        format: of the critiques.
        recipe: of the training; of a base in a directory only the last part of the path appears.
        adapter: True for a LoRA adapter, which needs its base model.
    """
    model, settings, counts = recipe.model, recipe.reward_model, results["counts"]
    base = settings.model or model.path
    local = Path(base).exists()
    of_hub = "" if local else f"base_model: {json.dumps(base)}\n"
    feedback = "a critique in words, then " if format.write_feedback else ""
    marks = _MARKS.get(format.form, "a label for each word of the response: positive, negative or neither")
    lora = f"with LoRA of rank {model.lora_r} and α = {model.lora_alpha}" if model.lora_r else "trained in full"
    decoded = "decoded greedily" if format.votes == 1 else f"sampled, {format.votes} each, and combined by vote,"
    constraint = "verbatim quotes" if FORMS[format.form].quotes else "a label for each word"
    constrained = f" and constrained to complete JSON and {constraint}" if format.constrain else ""
    count_rows = "\n".join(f"| {text} | {counts[key]:,} |" for key, text in _COUNTS.items())
    metric_rows = "\n".join(f"| {metric} | {value:.3f} |" for metric, value in results["measured"].items())
    return f"""---
{of_hub}library_name: {"peft" if adapter else "transformers"}
pipeline_tag: text-generation
tags: [text2grad, reward-model, critique]
---

# A reward model that writes critiques

A generative reward model for [Text2Grad](https://arxiv.org/abs/2505.22338). It reads a prompt and a response, and
writes JSON: {feedback}{marks}, which become a reward on each token of the response.

```python
from text2grad import Example, GenerativeRewardModel

critic = GenerativeRewardModel.load("OWNER/NAME")  # of this repository, or its directory
(critique,) = critic([Example("a prompt")], ["the response to judge"])
print(critique.feedback, critique.spans)
```

In a training run: `text2grad train RECIPE.toml --set critic.model=OWNER/NAME`. Prompts have the
{results["prompt_format"]} format of the training; `load` reads it from `reward_model.json`.

## Training data

| annotations | number |
|---|---|
{count_rows}

The base model is `{Path(base).name if local else base}`, {lora}. The loss covers the critiques only;
{results["steps"]:,} steps of {settings.batch_size} annotations at a peak learning rate of {settings.lr:g}
({settings.optimizer}). The weights are those of step {results["best_step"]:,}, the best on the held-out set.

## Held-out measurements

Critiques {decoded}{constrained} for {counts["held_out"] - counts["unaligned"]:,} held-out responses; the model was not
trained on their prompts. Precision, recall and F1 compare single tokens with the annotators' spans.

| held out | |
|---|---|
{metric_rows}

A policy exploits the mistakes of its critic: measure this model on the responses of your own policy before you rely on
it.
"""
