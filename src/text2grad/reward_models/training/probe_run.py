"""`text2grad reward --kind probe` from beginning to end: annotations → a probe (`probe`).

run.json, data.json     settings, and a hash of the annotations; a resumed run compares them
held_out.jsonl          the held-out annotations, for `text2grad evaluate critic`
model/                  probe.json and probe.safetensors, which need the base
results.json            counts and held-out measurements
"""

import json
from pathlib import Path

from text2grad.config import Recipe, check_directory, open_run
from text2grad.costs import metered
from text2grad.feedback import write_annotations
from text2grad.files import published, to_json, write_atomically
from text2grad.models import check_same_data, load_tokenizer
from text2grad.reward_models.probe import Unit
from text2grad.reward_models.probe_training import ProbeReport, train_probe
from text2grad.reward_models.training.card import base_of
from text2grad.reward_models.training.held_out import read_split
from text2grad.reward_models.training.run import HELD_OUT_FILE, MODEL, RESULTS_FILE, SECTIONS, reward_directory


def train_probe_of(recipe: Recipe, *, unit: Unit, resume: bool = False) -> tuple[Path, ProbeReport]:
    """Train the probe of a recipe and return its directory and its report.

    [reward_model] of the recipe names the annotations, the base (or [model] path), and what is held out; the probe
    labels each `unit`. `resume` repeats an interrupted training in its directory, and returns the report of a finished
    training.

    Raises:
        ConfigError: if a setting is missing, or the directory holds another run.
        DataError: if the annotations cannot be used.
        ModelError: if the base cannot be loaded.
        CheckpointError: if the run was started with other settings or annotations.
    """
    directory, base = reward_directory(recipe), base_of(recipe)
    check_directory(directory, resume=resume)
    split = read_split(recipe)
    tokenizer = load_tokenizer(base, trust_remote_code=recipe.model.trust_remote_code)
    open_run(directory, recipe, resume=resume, processes=1, sections=SECTIONS)
    check_same_data(directory / "data.json", {"unit": unit, "sha256": split.digest()}, "annotations or unit")
    if (directory / RESULTS_FILE).exists():
        return directory / MODEL, ProbeReport(**json.loads((directory / RESULTS_FILE).read_bytes()))
    write_annotations(directory / HELD_OUT_FILE, split.held_out)
    with metered(directory, "reward") as tokens:
        probe, report = train_probe(
            base,
            tokenizer,
            split.train,
            unit=unit,
            max_tokens=recipe.reward_model.max_tokens,
            seed=recipe.run.seed,
            held_out=split.held_out[: recipe.reward_model.eval_limit],
        )
        tokens.add(report.tokens, 0)
    if not (directory / MODEL).exists():
        with published(directory / MODEL) as temporary:
            probe.save(temporary)
    write_atomically(directory / RESULTS_FILE, to_json(report._asdict()))
    return directory / MODEL, report
