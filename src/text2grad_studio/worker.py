"""The process that holds the models: lessons, retrainings, answers and critics, one request at a time.

    python -m text2grad_studio.worker

Requests are lines of JSON on standard input, messages are lines of JSON on standard output; the process ends when its
input ends. The base model is loaded once; a version is a LoRA adapter on it.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from text2grad.errors import DataError, Text2GradError, is_out_of_memory
from text2grad.files import appended_records, exclusive, json_lines, published, to_json

Tell = Callable[..., None]


class Models:
    """The policy with the adapters of its versions."""

    def __init__(self, path: str) -> None:
        """Load the policy and its tokenizer."""
        from text2grad.models import best_device, check_model, load_policy, load_tokenizer

        self.path = path
        self.base = load_policy(path).eval().to(best_device())
        self.tokenizer = load_tokenizer(path)
        check_model(self.base)

    @contextmanager
    def adapted(self, adapter: Path | None, *, rank: int = 0, seed: int = 0) -> Iterator[Any]:
        """Yield the policy with a version's adapter, a new adapter of a rank, or none; then remove the adapter."""
        import torch

        from text2grad.models import POLICY_ADAPTER, adapter_parameters, load_lora, with_lora

        if adapter is None and not rank:
            yield self.base
            return
        torch.manual_seed(seed)
        if adapter is None:
            model = with_lora(self.base, r=rank, alpha=2 * rank, targets="all-linear")
        else:
            model = load_lora(self.base, str(adapter)).to(self.base.device)
            for parameter in adapter_parameters(model, POLICY_ADAPTER).values():
                parameter.requires_grad_(True)
        try:
            yield model
        finally:
            self.base = model.unload()


class Worker:
    """Answers requests; models are loaded at the first request that needs them."""

    def __init__(self) -> None:
        """Begin without models."""
        self._models: Models | None = None
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
        if self._models is None or self._models.path != request["policy"]["path"]:
            tell(state="working", progress="loading the policy")
            self._models = Models(request["policy"]["path"])
        work = {"teach": _teach, "retrain": _retrain, "ask": _ask}[kind]
        return work(self._models, request, tell)


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


def _adapter(request: Mapping[str, Any], version: int) -> Path | None:
    """Return the directory of a version's adapter; None for version 0.

    Raises:
        DataError: if the version does not exist.
    """
    if version == 0:
        return None
    path = Path(request["versions"]) / f"{version:04d}"
    if not (path / "version.json").exists():
        raise DataError(f"there is no version {version}")
    return path


def _teach(models: Models, request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Give a lesson and publish the version that it makes."""
    from text2grad_studio.teaching import Lesson, settings_from, teach

    lesson, parent = settings_from(Lesson(), request["lesson"], name="a lesson"), int(request["parent"])
    corrections = _corrections(request)

    def on_round(number: int, moved: float) -> None:
        words = f"round {number}: marked tokens moved {moved:.2f} of {lesson.target:g} nats"
        tell(state="working", progress=words, share=min(max(moved / lesson.target, number / lesson.rounds), 1.0))

    with models.adapted(_adapter(request, parent), rank=lesson.rank, seed=lesson.seed) as policy:
        prompt_format = request["policy"]["sampling"]["prompt_format"]
        taught = teach(policy, models.tokenizer, corrections, lesson, prompt_format=prompt_format, on_round=on_round)
        about = {"kind": "lesson", "lesson": asdict(lesson), **_description(taught, corrections)}
        return publish_version(models, policy, request, about)


def _retrain(models: Models, request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Train the reward model on the marks and then the policy with it, and publish the version."""
    import shutil

    from text2grad.feedback import read_annotations
    from text2grad.files import write_records
    from text2grad_studio.retraining import Retraining, forwarded_progress, retrain
    from text2grad_studio.teaching import settings_from

    settings = settings_from(Retraining(), request["retraining"], name="a retraining")
    parent = int(request["parent"])
    adapter, versions = _adapter(request, parent), Path(request["versions"])
    versions.mkdir(parents=True, exist_ok=True)
    for left in versions.glob("retraining-*"):  # left by a retraining that was stopped
        shutil.rmtree(left)
    scratch = Path(tempfile.mkdtemp(prefix="retraining-", dir=versions))
    corrections = _corrections(request)
    write_records(scratch / "marks.jsonl", request["annotations"])
    with (
        forwarded_progress(lambda words, share: tell(state="working", progress=words, share=share)),
        models.adapted(adapter, rank=settings.rank, seed=settings.seed) as policy,
    ):
        retrained = retrain(
            policy,
            models.tokenizer,
            models.path,
            request["policy"].get("run"),
            corrections,
            read_annotations(scratch / "marks.jsonl", to_encode=True),
            settings,
            earlier=adapter / "reward_model" if adapter is not None else None,
            scratch=scratch,
        )
        about = {"kind": "retraining", **retrained.about, **_description(retrained.taught, corrections)}
        published_version = publish_version(models, policy, request, about, reward_model=retrained.reward_model)
    shutil.rmtree(scratch)
    return published_version


def _corrections(request: Mapping[str, Any]) -> list[Any]:
    from text2grad.types import Span
    from text2grad_studio.teaching import Correction

    marked = [(own, [Span(s["start"], s["end"], s["label"]) for s in own["spans"]]) for own in request["corrections"]]
    return [Correction(**own | {"spans": spans}) for own, spans in marked]


def _description(taught: Any, corrections: Any) -> dict[str, Any]:
    return {
        "responses": len(corrections),
        "spans": sum(len(correction.spans) for correction in corrections),
        **{name: value for name, value in taught._asdict().items() if name != "changes"},
        "changes": [change._asdict() for change in taught.changes],
    }


def publish_version(
    models: Models, policy: Any, request: Mapping[str, Any], about: dict[str, Any], *, reward_model: Path | None = None
) -> dict[str, Any]:
    """Write a new version, whole or not at all; return its description without changes per token.

    The worker of a server that was killed may still publish a version beside the next server's worker: each version
    gets a number of its own.
    """
    import shutil

    from text2grad.models import POLICY_ADAPTER, save_model
    from text2grad_studio.versions import folders_of

    directory = Path(request["versions"])
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory):
        number = max(folders_of(directory), default=0) + 1
        made = datetime.now(UTC).isoformat(timespec="seconds")
        about = {"version": number, "parent": int(request["parent"]), "policy": models.path, "made": made, **about}
        with published(directory / f"{number:04d}") as path:
            policy.peft_config[POLICY_ADAPTER].base_model_name_or_path = models.path  # not the base of a run's adapter
            save_model(policy, path, selected_adapters=[POLICY_ADAPTER])
            if reward_model is not None:
                shutil.copytree(reward_model, path / "reward_model")
                shutil.copy(reward_model.with_name("annotations.jsonl"), path)  # the next retraining samples from them
            before = appended_records(directory / f"{about['parent']:04d}" / "marks.jsonl")
            (path / "marks.jsonl").write_bytes(json_lines([*before, *request.get("annotations", ())]))
            (path / "version.json").write_bytes(to_json(about))
    return {key: value for key, value in about.items() if key != "changes"}


def _ask(models: Models, request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Let several versions answer one prompt with the same random numbers."""
    import torch

    from text2grad.align import policy_offsets
    from text2grad.config import RolloutConfig
    from text2grad.models import collate, response_logprobs
    from text2grad.runs import sample_rollouts
    from text2grad.types import Example

    settings, answers = dict(request["policy"]["sampling"]), []
    how = {"prompt_format": settings.pop("prompt_format"), "seed": request["seed"]}
    for number in request["versions_asked"]:
        tell(state="working", progress=f"version {number} answers" if number else "the policy answers")
        with models.adapted(_adapter(request, number)) as policy:
            example, sampling = Example(request["prompt"]), RolloutConfig(**settings)
            [rollout] = sample_rollouts(policy, models.tokenizer, [example], sampling, **how)
            batch = collate([rollout], pad_id=0, device=policy.device)
            with torch.no_grad():
                logp = response_logprobs(policy, batch, temperature=settings["temperature"])[0]
            answers.append(
                {
                    "version": number,
                    "prompt": request["prompt"],
                    "response": rollout.response,
                    "ids": list(rollout.response_ids),
                    "offsets": policy_offsets(models.tokenizer, rollout.response_ids),
                    "logp": [round(x, 5) for x in logp[0].tolist()],
                    "truncated": rollout.truncated,
                }
            )
    return {"prompt": request["prompt"], "seed": request["seed"], "answers": answers}


if __name__ == "__main__":
    main()
