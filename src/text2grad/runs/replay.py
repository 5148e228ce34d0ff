"""A run made again without some of its feedback, exactly: `text2grad without`.

The new run begins at its parent's last checkpoint before the first use of what is left out, with the same prompts and
random numbers. Where a response to a prompt has the parent's words, it gets the parent's critique; the critic is asked
for others only. What is left out is taken from each critique before δ is made of it. So the result is, bit for bit,
that of a run that never had it (same machine and threads, critiques that follow from prompt and response).

lineage.json names the parent, what was left out, and the step from which it made a difference.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from text2grad.config import Recipe, all_checkpoints, latest_checkpoint, recipe_of_run, step_of
from text2grad.errors import CheckpointError, ConfigError, DataError
from text2grad.feedback import TOMBSTONES, Critic, critique_from_json
from text2grad.files import published, to_json
from text2grad.models import make_rollouts
from text2grad.progress import CONSOLE, note
from text2grad.rl import RunLog, Text2GradTrainer, chosen_examples
from text2grad.runs.evaluations import DIRECTORY as EVALUATIONS
from text2grad.runs.lineage import LINEAGE, read_lineage
from text2grad.runs.recipe_run import run_recipe
from text2grad.runs.reports.run_report import write_page
from text2grad.runs.reports.terminal import print_figures
from text2grad.runs.run_comparison import compare_runs, print_compared, write_compared
from text2grad.types import Critique, Example, Rollout

Steps = Mapping[int, Sequence[Mapping[str, Any]]]  # the records of the responses of each step, by number


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Feedback that a run does without.

    Attributes:
        raters: whose spans are left out.
        categories: spans of these kinds are left out, and of those below: "style" stands for "style/tone", too.
        critiques: names of whole critiques, STEP:ROW, both from 0; or of a withdrawn mark, which the records lost.
    """

    raters: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    critiques: tuple[str, ...] = ()

    def rest(self, critique: Critique, name: str) -> Critique:
        """Return what is left of a critique of this name; without any of its spans its outcome goes, too."""
        if name in self.critiques or critique.status == "withdrawn":
            return Critique("")
        kept = tuple(span for span in critique.spans if not self._has(span.rater, span.category))
        if len(kept) == len(critique.spans):
            return critique
        return replace(critique, spans=kept) if kept else Critique("")

    def _has(self, rater: str | None, category: str | None) -> bool:
        parts = (category or "").split("/")
        above = {"/".join(parts[: end + 1]) for end in range(len(parts))}
        return rater in self.raters or not above.isdisjoint(self.categories)


class KnownCritiques:
    """A critic that repeats the critiques of a run's records, and asks another critic about other responses.

    Attributes:
        step: the step that asks; where the critic learned on the way, only critiques of the same step are repeated.
    """

    overlap = 0  # asked when all responses are there

    def __init__(self, critic: Critic, steps: Steps, *, learns: bool) -> None:
        """Take the critic, the records, and whether the critic learned during the run."""
        self.critic, self.step, self.learns = critic, 0, learns
        records = ((step, record) for step, of_step in steps.items() for record in of_step)
        self.known = {self._key(s, r["prompt"], r["response"]): r["critique"] for s, r in records}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the other critic."""
        return getattr(self.critic, name)

    def _key(self, step: int, prompt: str, response: str) -> tuple[int, str, str]:
        return (step if self.learns else 0, prompt, response)

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Any]:
        """Return one critique per response."""
        keys = [self._key(self.step, e.prompt_text, r) for e, r in zip(examples, responses, strict=True)]
        new = [row for row, key in enumerate(keys) if key not in self.known]
        asked = self.critic([examples[row] for row in new], [responses[row] for row in new]) if new else ()
        answers = dict(zip(new, asked, strict=True))
        return [
            answers[row] if row in answers else critique_from_json(self.known[key], responses[row], where="a record")
            for row, key in enumerate(keys)
        ]


class Replay(Text2GradTrainer):
    """Makes the steps of a run again without some feedback."""

    def __init__(
        self, model: Any, critic: Critic, *inputs: Any, steps: Steps, left_out: LeftOut, same: bool, **settings: Any
    ) -> None:
        """Take a trainer's inputs and the parent's records; `same` takes its responses instead of new ones."""
        self.steps, self.left_out, self.same = steps, left_out, same
        super().__init__(model, critic, *inputs, **settings)
        self.critic = self.known = KnownCritiques(self.critic, steps, learns=self.recipe.refresh.active)

    def sample(self, early: Any = None) -> list[Rollout]:
        """Return the responses of the step: the parent's, or new ones."""
        if not self.same:
            return super().sample(early)
        if self.step not in self.steps:
            raise DataError(f"the parent has no responses of step {self.step}; leave --same-responses out")
        count, rank = len(self.steps[self.step]) // self.accelerator.num_processes, self.accelerator.process_index
        mine = slice(rank * count, (rank + 1) * count)
        chosen = chosen_examples(self, self.step)[mine]
        responses = [record["ids"] for record in self.steps[self.step][mine]]
        prompts, examples = [self.prompt_ids[i] for i in chosen], [self.examples[i] for i in chosen]
        return make_rollouts(self.tokenizer, examples, prompts, responses, self.eos_ids)

    def criticize(self, rollouts: Sequence[Rollout], early: Any = None) -> list[Critique]:
        """Return the critiques of the step without what is left out."""
        self.known.step = self.step
        critiques, first = super().criticize(rollouts, early), self.accelerator.process_index * len(rollouts)
        return [self.left_out.rest(c, f"{self.step}:{row}") for row, c in enumerate(critiques, start=first)]


def compare_without(parent: Path, out: Path, left_out: LeftOut, *, same_responses: bool = False) -> None:
    """Make a run again without some of its feedback (`make_without`); write and print how both differ."""
    lineage = make_without(parent, out, left_out, same_responses=same_responses)
    write_page(out, f"Without {', '.join(left_out.raters + left_out.categories + left_out.critiques)}")
    print_compared(CONSOLE, write_compared(compare_runs([parent, out]), out / "comparison"))
    apart = f"{weights_apart(parent, out):.3g} of their norm"
    lines = {"run": out, "first step": lineage["first"], "weights apart": apart}
    print_figures(CONSOLE, [*lines.items(), ("page", out / "comparison" / "compare.html")])


def make_without(parent: Path, out: Path, left_out: LeftOut, *, same_responses: bool = False) -> dict[str, Any]:
    """Make a run again without some of its feedback, or go on with it; return its lineage.

    Args:
        parent: the directory of a finished or unfinished run of `text2grad train`.
        out: the directory of the new run.
        left_out: the feedback that it does without.
        same_responses: learn from the parent's responses, whatever the new policy would say; no critic is asked.

    Raises:
        DataError: if nothing of the parent's feedback is left out.
        ConfigError: if `out` holds another run, or the parent's prompts or critic came from a script.
    """
    recipe = recipe_of_run(parent)
    if not recipe.data.task and not recipe.data.train:
        raise ConfigError(
            f"{parent} was started by a script, and its recipe names no prompts: make it again by a recipe of "
            "`text2grad train`, with data.train and critic.use"
        )
    steps = dict(RunLog(parent).rollouts(since=0))
    first = _first_use(parent, steps, left_out)
    parts = {"parent": str(parent), "without": asdict(left_out), "same_responses": same_responses, "first": first}
    lineage: dict[str, Any] = json.loads(to_json(parts))
    recipe = recipe.model_copy(update={"run": recipe.run.model_copy(update={"out": str(out)})})
    if (out / "run.json").exists():
        before = read_lineage(out)
        if any(before.get(name) != value for name, value in lineage.items()):
            raise ConfigError(f"{out} holds another run; choose another directory with --out DIR")
    else:
        begun = begin_again(parent, out, recipe, lineage, from_step=first)
        note(f"{out}: {begun}; the first critique that is left out is of step {first}")
    run_recipe(recipe, resume=True, trainer_class=partial(Replay, steps=steps, left_out=left_out, same=same_responses))
    return lineage


def _first_use(parent: Path, steps: Steps, left_out: LeftOut) -> int:
    """Return the first step that learned from what is left out, or from marks that the records hold no more."""
    seen = {"raters": set[str](), "categories": set[str]()}
    for step, records in steps.items():
        for row, record in enumerate(records):
            critique = critique_from_json(record["critique"], record["response"], where=str(parent / "rollouts"))
            if record.get("withdrawn") or left_out.rest(critique, f"{step}:{row}") != critique:
                return step
            seen["raters"] |= {span.rater for span in critique.spans if span.rater}
            seen["categories"] |= {span.category for span in critique.spans if span.category}
    wanted = ", ".join(f"{key} {', '.join(value)}" for key, value in asdict(left_out).items() if value)
    last = f"{max(steps)}:{len(steps[max(steps)]) - 1}" if steps else "none"
    known = (f"its {key}: {', '.join(sorted(value)) or 'none'}" for key, value in seen.items())
    raise DataError(f"{parent} learned from nothing of {wanted}; {'; '.join(known)}; its last critique: {last}")


def begin_again(parent: Path, out: Path, recipe: Recipe, lineage: Mapping[str, Any], *, from_step: int) -> str:
    """Make the directory of a run that goes on from the parent's last checkpoint up to a step; say from which."""
    known = [path for path in all_checkpoints(parent / "checkpoints") if step_of(path) <= from_step]
    out.parent.mkdir(parents=True, exist_ok=True)
    with published(out) as temporary:
        contents, settings = json.loads((parent / "run.json").read_bytes()), recipe.model_dump(mode="json")
        empty = {f"{section}.{key}" for section, keys in settings.items() for key, value in keys.items() if not value}
        if recipe.data.train and (Path(recipe.data.train).parent / TOMBSTONES).exists():  # prompts stay without marks
            empty |= {"data.train", "data.held_out", "prompts", "held-out prompts"}
        inputs = {name: digest for name, digest in contents["inputs"].items() if name not in empty}
        contents |= {"recipe": settings, "inputs": inputs}
        (temporary / "checkpoints").mkdir(parents=True)
        if known:
            shutil.copytree(known[-1], temporary / "checkpoints" / known[-1].name)
            (temporary / EVALUATIONS).mkdir()
            for path in (parent / EVALUATIONS).glob("*.json"):
                if int(path.stem) <= step_of(known[-1]):
                    shutil.copy2(path, temporary / EVALUATIONS)
            shutil.copytree(parent / "rollouts", temporary / "rollouts")  # cut at the checkpoint when the run goes on
            shutil.copy2(parent / "metrics.jsonl", temporary)
            if (parent / "critic").exists():  # what a learned critic was at that checkpoint
                shutil.copytree(parent / "critic", temporary / "critic")
        (temporary / LINEAGE).write_bytes(to_json(lineage))
        (temporary / "run.json").write_bytes(to_json(contents))
    return f"goes on from {known[-1].name} of {parent}" if known else f"begins as {parent} did"


def weights_apart(first: Path, second: Path) -> float:
    """Return how far the last weights of two runs differ: ‖θ₁ − θ₂‖ / ‖θ₁‖, and 0 where they are equal bit for bit.

    Raises:
        CheckpointError: if a run has no checkpoint.
    """
    from safetensors import safe_open

    files = []
    for run in (first, second):
        if (checkpoint := latest_checkpoint(run / "checkpoints")) is None:
            raise CheckpointError(f"{run} has no checkpoint, so its weights cannot be compared")
        files.append(checkpoint / "trainable.safetensors")

    def squares() -> Iterator[tuple[float, float]]:
        with safe_open(files[0], "pt") as ours, safe_open(files[1], "pt") as theirs:
            for name in ours.keys():  # noqa: SIM118  no dict
                mine = ours.get_tensor(name).double()
                yield float((mine - theirs.get_tensor(name)).square().sum()), float(mine.square().sum())

    apart, whole = map(sum, zip(*squares(), strict=True))
    return float((apart / max(whole, 1e-300)) ** 0.5)
