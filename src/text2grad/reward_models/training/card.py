"""The model card of a generative reward model: training data, settings, held-out measurements, usage."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from text2grad.config import Recipe
from text2grad.errors import ConfigError
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.writing import QUOTING

_CARD = """---
{base_line}library_name: {library}
pipeline_tag: text-generation
tags:
- text2grad
- reward-model
- critique
---

# {name}

A generative reward model for [Text2Grad](https://arxiv.org/abs/2505.22338). It reads a prompt
and a response, and writes JSON: {feedback}{marks}, which become a reward on each token of the response.

```python
from text2grad import Example, GenerativeRewardModel

critic = GenerativeRewardModel.load("{load}")
(critique,) = critic([Example("a prompt")], ["the response to judge"])
print(critique.feedback, critique.spans)
```

In a training run: `text2grad train RECIPE.toml --set critic.model={load}`. Prompts have the {prompt_format} format of
the training; `load` reads it from `reward_model.json`.

## Training data

| annotations | number |
|---|---|
{counts}

The base model is {base}{lora}. The loss covers the critiques only; {steps:,} steps of {batch_size} annotations
at a peak learning rate of {lr:g} ({optimizer}). The weights are those of step {best_step:,}, the best on the held-out
set.

## Held-out measurements

Critiques {decoded}{constrained} for {responses:,} held-out responses; the model was not trained on their
prompts. Precision, recall and F1 compare single tokens with the annotators' spans.

| held out | |
|---|---|
{measured}

A policy exploits the mistakes of its critic: measure this model on the responses of your own policy before you rely on
it.
"""

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


def base_of(recipe: Recipe) -> str:
    """Return the model that [reward_model] trains.

    Raises:
        ConfigError: if the recipe names none.
    """
    path = recipe.reward_model.model or recipe.model.path
    if not path:
        raise ConfigError("[model] path is not set: name the model to train with --model PATH")
    return path


def model_card(results: Mapping[str, Any], format: CritiqueFormat, recipe: Recipe, *, name: str, adapter: bool) -> str:
    """Return the text of the card.

    Args:
        results: `counts`, `measured`, `best_step`, `steps` and `prompt_format`, as in results.json.
        format: of the critiques.
        recipe: of the training; of a base in a directory only the last part of the path appears.
        name: OWNER/NAME on the hub, or the directory.
        adapter: True for a LoRA adapter, which needs its base model.
    """
    base, model, settings = base_of(recipe), recipe.model, recipe.reward_model
    local = Path(base).exists()
    constraint = "verbatim quotes" if format.form in QUOTING else "a label for each word"
    return _CARD.format(
        base_line="" if local else f"base_model: {json.dumps(base)}\n",
        library="peft" if adapter else "transformers",
        name=name.rpartition("/")[2],
        load=name,
        feedback="a critique in words, then " if format.write_feedback else "",
        marks=_MARKS.get(format.form, "a label for each word of the response: positive, negative or neither"),
        prompt_format=results["prompt_format"],
        counts="\n".join(f"| {text} | {results['counts'][key]:,} |" for key, text in _COUNTS.items()),
        base=f"`{Path(base).name if local else base}`",
        lora=f", with LoRA of rank {model.lora_r} and α = {model.lora_alpha}" if model.lora_r else ", trained in full",
        steps=results["steps"],
        batch_size=settings.batch_size,
        lr=settings.lr,
        optimizer=settings.optimizer,
        best_step=results["best_step"],
        decoded="decoded greedily" if format.votes == 1 else f"sampled, {format.votes} each, and combined by vote,",
        constrained=f" and constrained to complete JSON and {constraint}" if format.constrain else "",
        responses=results["counts"]["held_out"] - results["counts"]["unaligned"],
        measured="\n".join(f"| {metric} | {value:.3f} |" for metric, value in results["measured"].items()),
    )
