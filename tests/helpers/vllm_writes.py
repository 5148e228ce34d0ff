"""Write critiques with vLLM in this process: `python tests/helpers/vllm_writes.py TASKS OUT`, with the Python of vLLM.

TASKS is JSON: {"model": directory, "tasks": [{"settings": {...}, "prompt": "...", "responses": [...]}, ...]}. OUT gets
the texts of each task; where it has votes, what each of the drawn critiques of each response is.
"""

import json
import sys
from pathlib import Path

from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.format import CritiqueFormat
from text2grad.reward_models.vllm import VLLMRewardModel
from text2grad.types import Critique, Example


def main(tasks: Path, out: Path) -> None:
    """Load the model once, and write by each task's settings."""
    asked = json.loads(tasks.read_bytes())
    loaded = VLLMRewardModel.load(asked["model"], config={"dtype": "float32", "enforce_eager": True})
    written = []
    for task in asked["tasks"]:
        settings = {**task["settings"], "limits": QuoteLimits(**task["settings"].get("limits", {}))}
        model = VLLMRewardModel(loaded.engine, loaded.tokenizer, CritiqueFormat(**settings))
        asked_about = [Example(task["prompt"])] * len(task["responses"]), task["responses"]
        if model.format.votes > 1:
            drawn = model.draw(*asked_about)
            written.append([list(map(_told, own)) for own in drawn])
        else:
            written.append(model.write(*asked_about))
    out.write_text(json.dumps(written))


def _told(critique: Critique) -> tuple[object, ...]:
    spans = [(span.start, span.end, span.label) for span in critique.spans]
    return critique.feedback, spans, critique.status, critique.unmatched


if __name__ == "__main__":  # vLLM starts processes that read this file again
    main(Path(sys.argv[1]), Path(sys.argv[2]))
