"""The process that holds the models: lessons, retrainings, answers and critics, one request at a time.

    python -m text2grad_studio.worker

Requests are lines of JSON on standard input, messages are lines of JSON on standard output; the process ends when its
input ends. A version is a LoRA adapter on the version that it began from, its parent, or on the policy before all.
"""

import json
import os
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

from text2grad.errors import DataError, Text2GradError, is_out_of_memory
from text2grad.files import exclusive, json_lines, published, readable, to_json, write_atomically, write_files

SHOWN, SHOWN_TOKENS = 8, 64  # answers before and after a lesson, and their tokens
SHARES = 10  # of critiques in the change of a phrase
Tell = Callable[..., None]
FILES = ("alternatives.jsonl", "lesson.json", "report.html")  # of a lesson, that lie beside its adapter


class Worker:
    """Answers requests; the critic of the last question stays loaded."""

    def __init__(self) -> None:
        """Begin without models."""
        self._critic: tuple[Any, Any] = (None, None)  # what was asked for, and the critic

    def answer(self, request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
        """Return the result of a request.

        Raises:
            Text2GradError: if it cannot be done.
        """
        kind = request["kind"]
        if kind == "suggest":
            from text2grad.feedback import response_of
            from text2grad_studio.run_critic import RunCritic

            if self._critic[0] != request["critic"]:
                tell(state="working", progress="loading the critic")
                self._critic = request["critic"], RunCritic(request["critic"])
            tell(state="working", progress="the critic reads")
            response = response_of(request, "the question")
            result: dict[str, Any] = self._critic[1].judge(request["prompt"], response)
            return result
        works = (_teach, _retrain, _ask, _answer, _why, _withdraw)
        return {work.__name__: work for work in works}[f"_{kind}"](request, tell)


def main() -> None:
    """Answer requests until the input ends."""
    output = os.fdopen(os.dup(1), "wb", buffering=0)  # libraries that print do not disturb the messages
    os.dup2(2, 1)
    worker = Worker()
    for line in sys.stdin.buffer:
        request = json.loads(line)

        def tell(number: int = request["number"], **message: Any) -> None:
            output.write(to_json({"number": number, **message}) + b"\n")

        try:
            tell(state="done", progress="", result=worker.answer(request, tell))
        except Text2GradError as error:
            tell(state="failed", error=str(error))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            tell(state="failed", error=f"out of memory: {error}. Teach fewer or shorter responses at a time")


def _policy_of(request: Mapping[str, Any], version: int) -> str:
    """Return the directory or name of a version's policy; that of version 0 is the policy before all lessons.

    Raises:
        DataError: if the version does not exist.
    """
    if version == 0:
        return str(request["policy"]["path"])
    path = Path(request["versions"]) / f"{version:04d}"
    if not (path / "version.json").exists():
        raise DataError(f"there is no version {version}")
    return str(path.absolute())


def _recipe_of(request: Mapping[str, Any], version: int, *, out: Path = Path(), most: float = inf) -> Any:
    """Return the recipe of a lesson for a version, with the form of prompts and the sampling of its run.

    Args:
        request: has the policy and the directory of versions.
        version: the lesson begins from it.
        out: directory of the lesson.
        most: tokens of an answer.
    """
    from text2grad.config import make_recipe
    from text2grad.tasks import LESSON_RECIPE

    sections, sampling = tomllib.loads(LESSON_RECIPE.read_text()), dict(request["policy"]["sampling"])
    prompt_format = sampling.pop("prompt_format")
    sections["model"] |= {"path": _policy_of(request, version), "prompt_format": prompt_format}
    sections["rollout"] |= sampling
    sections["rollout"]["max_new_tokens"] = min(sampling["max_new_tokens"], most)
    sections["data"]["eval_examples"] = SHOWN
    sections["run"] |= {"out": str(out), "threads": 0}
    return make_recipe(sections, where="the studio's recipe")


@contextmanager
def _scratch(request: Mapping[str, Any], tell: Tell) -> Iterator[Path]:
    """Yield a new directory with the marks as marks.jsonl, which is removed at the end; progress goes to the page."""
    from text2grad.files import write_records
    from text2grad_studio.retraining import forwarded_progress

    versions = Path(request["versions"])
    versions.mkdir(parents=True, exist_ok=True)
    for left in versions.glob("unfinished-*"):  # by work that was stopped
        shutil.rmtree(left)
    path = Path(tempfile.mkdtemp(prefix="unfinished-", dir=versions))
    write_records(path / "marks.jsonl", request["annotations"])
    try:
        with forwarded_progress(lambda words, share: tell(state="working", progress=words, share=share)):
            yield path
    finally:
        shutil.rmtree(path)


def _teach(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Give a lesson and publish the version that it makes."""
    from text2grad.evaluation import read_subjects
    from text2grad.models import best_device, load_policy, load_tokenizer, with_chat_template
    from text2grad.runs import give_lesson, read_judged
    from text2grad_studio.teaching import measured

    parent = int(request["parent"])
    with _scratch(request, tell) as scratch:
        home = scratch / "lesson"
        recipe = _recipe_of(request, parent, out=home, most=SHOWN_TOKENS)
        steps = give_lesson(recipe, scratch / "marks.jsonl")["steps"]
        adapter = read_subjects([str(home / "run")])[0].path  # of its last checkpoint
        policy = load_policy(adapter, dtype=recipe.model.dtype, merge=False).to(best_device())
        tokenizer = with_chat_template(load_tokenizer(recipe.model.path), recipe)
        answers = read_judged(scratch / "marks.jsonl", policy, tokenizer, recipe)
        about = {"kind": "lesson", "steps": steps, **_description(measured(policy, tokenizer, answers), answers)}
        return publish_version(request, Path(adapter), [home / name for name in FILES], about)


def _retrain(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Train the reward model on the marks and then the policy with it, and publish the version."""
    import torch

    from text2grad.models import (
        POLICY_ADAPTER,
        best_device,
        load_policy,
        load_tokenizer,
        save_model,
        with_chat_template,
        with_lora,
    )
    from text2grad.runs import read_judged
    from text2grad_studio.retraining import Retraining, retrain

    settings, parent = Retraining.from_page(request["retraining"]), int(request["parent"])
    recipe = _recipe_of(request, parent)
    with _scratch(request, tell) as scratch:
        policy = load_policy(recipe.model.path).to(best_device())
        torch.manual_seed(settings.seed)  # of the adapter's first weights
        policy = with_lora(policy, r=settings.rank, alpha=2 * settings.rank, targets="all-linear")
        tokenizer = with_chat_template(load_tokenizer(recipe.model.path), recipe)
        judged = read_judged(scratch / "marks.jsonl", policy, tokenizer, recipe)
        answers = [own for own in judged if own.critique.spans]  # of the others the critic's own opinion stays
        retrained = retrain(
            policy,
            tokenizer,
            str(request["policy"]["path"]),
            request["policy"].get("run"),
            answers,
            settings,
            earlier=Path(recipe.model.path) / "reward_model" if parent else None,
            scratch=scratch,
        )
        policy.peft_config[POLICY_ADAPTER].base_model_name_or_path = recipe.model.path
        save_model(policy, scratch / "adapter", selected_adapters=[POLICY_ADAPTER])
        model = retrained.reward_model  # beside it are the annotations, from which the next retraining samples
        about = {"kind": "retraining", **retrained.about, **_description(retrained.taught, answers)}
        return publish_version(request, scratch / "adapter", [model, model.with_name("annotations.jsonl")], about)


def _description(taught: Any, answers: Sequence[Any]) -> dict[str, Any]:
    return {
        "responses": len(answers),
        "spans": sum(len(own.critique.spans) for own in answers),
        **{name: value for name, value in taught._asdict().items() if name != "changes"},
        "changes": [change._asdict() for change in taught.changes],
    }


def publish_version(
    request: Mapping[str, Any], adapter: Path, others: Sequence[Path], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write a new version, whole or not at all; return its description without changes per token.

    The worker of a server that was killed may still publish a version beside the next server's worker: each version
    gets a number of its own.

    Args:
        request: has the marks, the parent and the directory of versions.
        adapter: its directory.
        others: files and directories that lie beside the adapter.
        about: its description.
    """
    from text2grad_studio.versions import folders_of

    directory = Path(request["versions"])
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory):
        number = max(folders_of(directory), default=0) + 1
        made, policy = datetime.now(UTC).isoformat(timespec="seconds"), request["policy"]["path"]
        about = {"version": number, "parent": int(request["parent"]), "policy": policy, "made": made, **about}
        with published(directory / f"{number:04d}") as path:
            shutil.copytree(adapter, path, dirs_exist_ok=True)
            for other in others:
                (shutil.copytree if other.is_dir() else shutil.copy)(other, path / other.name)
            (path / "marks.jsonl").write_bytes(json_lines(request["annotations"]))
            (path / "version.json").write_bytes(to_json(about))
    return {key: value for key, value in about.items() if key != "changes"}


def _answer(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Let the policy answer files of prompts, each into a file of a directory."""
    from text2grad.feedback import read_examples
    from text2grad.runs import PolicySampler

    recipe, count = _recipe_of(request, 0), 0
    sampler = PolicySampler(recipe, recipe.model.path, dtype=recipe.model.dtype)
    for file, directory in request["files"]:
        tell(state="working", progress=f"the policy answers {file}")
        rollouts = sampler(read_examples(file), seed=0)
        rows = [
            {"prompt": r.example.prompt_text, "response": r.response, "ids": list(r.response_ids)} for r in rollouts
        ]
        write_files(Path(directory), {"answers.jsonl": json_lines(rows)})
        count += len(rows)
    return {"answers_to_files": count}


def _why(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Say which critiques of a run moved the log-probability of a phrase."""
    from text2grad.runs import explain

    with _scratch({**request, "annotations": ()}, tell) as scratch:
        explained = explain(Path(request["run"]), request["phrase"], scratch=scratch)
    numbers = {name: getattr(explained, name) for name in ("before", "after", "explained", "places")}
    named = {"source": request["source"], "phrase": request["phrase"], "critiques": len(explained.shares)}
    return {**named, **numbers, "shares": explained.largest(SHARES)}


def _withdraw(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Say which versions learned from marks that a rater takes back; take them out of the store, if it is "sure".

    Raises:
        DataError: if none of the marks is there.
    """
    from text2grad.runs import Retraction
    from text2grad_studio.versions import folders_of

    store, retractions = Path(request["versions"]).resolve().parent, list[Retraction]()
    for mark in request["marks"]:
        with suppress(DataError):  # a mark that was moved has names that no version learned
            retractions.append(Retraction(store, store, request["rater"], mark))
    if not retractions:
        raise DataError(f"no mark of {request['rater']} is in {store} any more")
    homes = {home for retraction in retractions for home in retraction.versions}
    learned = dict[int, Any]()
    paths = [path for folder in folders_of(store / "versions").values() if (path := folder / "version.json").exists()]
    for path in paths:  # each is of an adapter on its parent, which is before it
        with readable(path, "Put a copy of it back, or move its folder away"):
            about = json.loads(path.read_bytes())
        if path.parent in homes or about["parent"] in learned:
            learned[int(path.parent.name)] = about | {"withdrawn": True}
    if request["sure"]:
        for retraction in retractions:
            retraction.write("the studio", held=store)
        for number, about in learned.items():
            write_atomically(store / "versions" / f"{number:04d}" / "version.json", to_json(about))
    marks = len(set().union(*(names for own in retractions for names in own.files.values())))
    asked = {name: request[name] for name in ("rater", "item", "id", "sure")}
    parent = min((about["parent"] for about in learned.values()), default=None)
    return asked | {"marks": marks, "learned": [*learned], "parent": parent}


def _ask(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Let several versions answer one prompt with the same random numbers."""
    import torch

    from text2grad.align import policy_offsets
    from text2grad.models import collate, response_logprobs
    from text2grad.runs import PolicySampler
    from text2grad.types import Example

    answers = []
    for number in request["versions_asked"]:
        tell(state="working", progress=f"version {number} answers" if number else "the policy answers")
        recipe = _recipe_of(request, number)
        sampler = PolicySampler(recipe, recipe.model.path, dtype=recipe.model.dtype)
        [rollout] = sampler([Example(request["prompt"])], seed=request["seed"])
        batch = collate([rollout], pad_id=0, device=sampler.policy.device)
        with torch.no_grad():
            logp = response_logprobs(sampler.policy, batch, temperature=recipe.rollout.temperature)[0]
        answers.append(
            {
                "version": number,
                "prompt": request["prompt"],
                "response": rollout.response,
                "ids": list(rollout.response_ids),
                "offsets": policy_offsets(sampler.tokenizer, rollout.response_ids),
                "logp": [round(x, 5) for x in logp[0].tolist()],
                "truncated": rollout.truncated,
            }
        )
    return {"prompt": request["prompt"], "seed": request["seed"], "answers": answers}


if __name__ == "__main__":
    main()
