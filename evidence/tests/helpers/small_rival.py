"""Rivals on the model, the prompts and the critic of small_run."""

from pathlib import Path
from typing import Any

import small_run
from evidence.rivals.judged import Judged
from evidence.rivals.trainer import RivalTrainer
from text2grad.types import Critique, Example, Rollout

SMALL: dict[str, dict[str, Any]] = {
    "model": {"value": "none"},
    "rollout": {"batch_size": 8, "max_new_tokens": 6, "group_size": 4},
    "rival": {"rounds": 2, "epochs": 1, "batch_size": 4, "refine_prompt": "{prompt} {response} {critique}"},
    "run": {"steps": 4, "save_every": 10, "threads": 1, "tracker": "none", "seed": 3},
}


def trainer(out: Path, method: str, judge: Any = None, *, resume: bool = False, **sections: Any) -> RivalTrainer:
    """Return the trainer of a rival; keyword arguments are sections of its recipe."""
    given = {name: {**SMALL.get(name, {}), **sections.get(name, {})} for name in {*SMALL, *sections}}
    given["rival"]["method"] = method
    given["run"]["out"] = str(out)
    tokenizer, model = small_run.tokenizer_and_model()
    recipe = small_run.recipe(out, **given)
    critic = judge or small_run.ColourCritic()
    return RivalTrainer(model, critic, small_run.EXAMPLES, recipe, processing_class=tokenizer, resume=resume)


def judged(reward: float, response: str = "", *, prompt: tuple[int, ...] = (1,), failed: bool = False) -> Judged:
    """Return a judged response without meaning."""
    rollout = Rollout(Example("x"), prompt, (2,), response or f"reward {reward}", truncated=False)
    return Judged(rollout, Critique("", status="unparsable" if failed else "ok"), reward)
