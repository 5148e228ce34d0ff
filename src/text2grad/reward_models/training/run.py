"""`text2grad reward` from beginning to end: annotations → a reward model with its card (section 3.4).

run.json · data.json    settings, and what was learned from, by which a resumed run knows itself again
metrics.jsonl           loss by step, held-out measurements
checkpoints/            the best and the last
model/                  the best: a Hugging Face directory or an adapter, reward_model.json, README.md
merged/                 on request, the adapter merged into its base
results.json            counts, and what was measured
"""

import json
from pathlib import Path
from typing import Any

import torch

from text2grad.config import Recipe, open_run
from text2grad.errors import CheckpointError, ConfigError, ModelError
from text2grad.feedback import push_folder
from text2grad.files import published, to_json, write_atomically
from text2grad.models import (
    NO_LOSS,
    FineTuning,
    context_of,
    load_lora,
    load_policy,
    load_tokenizer,
    supervised_row,
    with_lora,
)
from text2grad.reward_models.generative import GenerativeRewardModel
from text2grad.reward_models.load import limits_of
from text2grad.reward_models.scalar import format_of
from text2grad.reward_models.training.card import model_card
from text2grad.reward_models.training.examples import lessons
from text2grad.reward_models.training.held_out import HeldOut, Shares, read_shares
from text2grad.reward_models.training.trainer import METRICS_FILE, Told, checkpoint_path, last_progress, reward_trainer
from text2grad.types import PromptFormat

MODEL, MERGED, RESULTS_FILE = "model", "merged", "results.json"


class RewardRun:
    """One training of a reward model, checked as far as it can be before anything is written."""

    def __init__(self, recipe: Recipe, *, resume: bool = False) -> None:
        """Read the annotations, load the model, and make or take up the run's directory.

        Args:
            recipe: [model] names what is trained, [reward_model] how, [critic] how it is to write, [run] the rest.
            resume: go on with the run in `run.out`.

        Raises:
            ConfigError: if the recipe lacks something, constrains a form that cannot be, or the directory holds another
                run.
            DataError: if the annotations cannot be used.
            ModelError: if the model cannot be loaded, or its tokenizer cannot write critiques.
            CheckpointError: if the run was started with other settings or annotations.
        """
        from accelerate import PartialState

        if not recipe.model.path:
            raise ConfigError("[model] path is not set: name the model to train by --model PATH")
        if recipe.reward_model.merge and not recipe.model.lora_r:
            raise ConfigError("reward_model.merge merges a LoRA adapter, and model.lora_r = 0 makes none; leave it out")
        self.recipe, self.directory = recipe, Path(recipe.run.out)
        if recipe.run.threads:
            torch.set_num_threads(recipe.run.threads)
        shares = read_shares(recipe.reward_model, recipe.run.seed)
        self.tokenizer = load_tokenizer(recipe.model.path, trust_remote_code=recipe.model.trust_remote_code)
        self.prompt_format = _prompt_format(self.tokenizer, recipe)
        self.model = self._model()
        self.critic = self._critic(self.model)
        self.rows, too_long = self._rows(shares)
        self.held_out = HeldOut(self.tokenizer, shares.held_out)
        self.counts = {
            "learned": len(self.rows),
            "target_tokens": sum(label != NO_LOSS for row in self.rows for label in row["labels"]),
            "too_long": too_long,
            "unreadable": shares.failed,
            "shared_prompts": shares.shared_prompts,
            "held_out": len(shares.held_out),
            "unaligned": self.held_out.unaligned,
        }
        self.state = PartialState(cpu=not torch.accelerator.is_available())
        self.is_main = bool(self.state.is_main_process)
        if self.is_main:
            open_run(self.directory, recipe, resume=resume, processes=self.state.num_processes)
            _know_again(self.directory / "data.json", {**self.counts, "sha256": shares.digest()})
            last_progress(self.directory)
        self.state.wait_for_everyone()

    def run(self, told: Told = lambda *_: None) -> Path:
        """Train to the end and return where the reward model is; what is finished already is not done again.

        Args:
            told: called with (step, of how many, measured) after each measurement.
        """
        out = self.directory / MODEL
        if not out.exists():
            trainer = reward_trainer(
                self.model, self.critic, self.rows, self.held_out, self.recipe, self.directory, told
            )
            last = last_progress(self.directory)
            if last is None:
                trainer.train()
            elif not last.finished(self.recipe):
                trainer.train(resume_from_checkpoint=str(checkpoint_path(self.directory, last.step)))
        self.state.wait_for_everyone()
        if self.is_main:
            self._publish(out)
        self.state.wait_for_everyone()
        return self.directory / MERGED if self.recipe.reward_model.merge else out

    def push(self, repository: str, *, private: bool = False) -> str:
        """Upload the finished reward model to the Hugging Face hub, under a card of that name; return its address.

        Raises:
            DataError: if the hub refuses or cannot be reached.
        """
        merge = self.recipe.reward_model.merge
        path = self.directory / (MERGED if merge else MODEL)
        results = json.loads((self.directory / RESULTS_FILE).read_bytes())
        adapter = bool(self.recipe.model.lora_r) and not merge
        card = model_card(self.recipe, results, name=repository, adapter=adapter)
        write_atomically(path / "README.md", card.encode())
        return push_folder(path, repository, private=private, kind="model")

    def _model(self) -> Any:
        """Return the model that is trained: in full in 32 bits, or with a fresh adapter."""
        settings = self.recipe.model
        dtype = "float32" if settings.dtype == "auto" and not settings.lora_r else settings.dtype
        model = load_policy(settings.path, dtype=dtype, trust_remote_code=settings.trust_remote_code)
        if not settings.lora_r:
            return model
        torch.manual_seed(self.recipe.run.seed)
        targets = settings.lora_targets if isinstance(settings.lora_targets, str) else list(settings.lora_targets)
        return with_lora(model, r=settings.lora_r, alpha=settings.lora_alpha, targets=targets)

    def _critic(self, model: Any, vote_threshold: float | None = None) -> GenerativeRewardModel:
        """Return the model as a critic that writes as [critic] says, or with the vote_threshold that was found best."""
        settings, critic = self.recipe.reward_model, self.recipe.critic
        return GenerativeRewardModel(
            model,
            self.tokenizer,
            max_new_tokens=settings.max_new_tokens,
            write_feedback=settings.write_feedback,
            form=settings.form,
            match=critic.match,
            constrain=critic.constrain,
            limits=limits_of(self.recipe),
            prompt_format=self.prompt_format,
            votes=critic.votes or 1,
            vote_threshold=critic.vote_threshold or vote_threshold or 0.5,
        )

    def _rows(self, shares: Shares) -> tuple[list[dict[str, list[int]]], int]:
        """Return the ids and labels of what is learned, and how many annotations are too long for it."""
        settings = self.recipe.reward_model
        if self.tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer has no end-of-sequence token, so no critique could be shown to end")
        longest = int(min(settings.max_tokens, context_of(self.model)))
        how = FineTuning(settings.steps, max_tokens=longest, prompt_format=self.prompt_format)
        asked, targets, too_long = lessons(self.critic, shares.train, max_tokens=longest)
        pairs = zip(asked, targets, strict=True)
        return [supervised_row(self.tokenizer, one.prompt_text, target, how) for one, target in pairs], too_long

    def _publish(self, out: Path) -> None:
        """Write the best checkpoint as a reward model, with its card; merged, too, where that is asked for."""
        last = last_progress(self.directory)
        if last is None:
            raise CheckpointError(f"{self.directory} holds no checkpoint to take the reward model from")
        measured = self._measured(last.best_step)
        results = {
            "counts": self.counts,
            "measured": measured,
            "best_step": last.best_step,
            "steps": last.step,
            "prompt_format": self.prompt_format,
        }
        best = checkpoint_path(self.directory, last.best_step)
        merged = self.directory / MERGED
        for path, whole in ((merged, True), (out, not self.recipe.model.lora_r)):
            if path.exists() or (path == merged and not self.recipe.reward_model.merge):
                continue
            with published(path) as temporary:
                self._critic(self._best(best, whole=whole), measured.get("vote_threshold")).save(temporary)
                card = model_card(self.recipe, results, name=str(path), adapter=not whole)
                write_atomically(temporary / "README.md", card.encode())
        write_atomically(self.directory / RESULTS_FILE, to_json(results))

    def _best(self, checkpoint: Path, *, whole: bool) -> Any:
        """Load a checkpoint's weights, an adapter on its base, or merged into it."""
        settings = self.recipe.model
        code = settings.trust_remote_code
        if not settings.lora_r:
            return load_policy(str(checkpoint), trust_remote_code=code)
        base = load_policy(settings.path, dtype=settings.dtype, trust_remote_code=code)
        model = load_lora(base, str(checkpoint))
        return model.merge_and_unload() if whole else model

    def _measured(self, step: int) -> dict[str, float]:
        """Return what was measured at a step."""
        lines = map(json.loads, (self.directory / METRICS_FILE).read_bytes().splitlines())
        found = [line for line in lines if line["step"] == step and "eval/f1" in line]
        return {name.removeprefix("eval/"): value for name, value in found[-1].items() if name != "step"}


def _prompt_format(tokenizer: Any, recipe: Recipe) -> PromptFormat:
    """Return how the model is asked, with "auto" decided."""
    wanted, own = recipe.reward_model.prompt_format, format_of(tokenizer)
    if wanted == "chat" and own == "plain":
        raise ModelError(
            f"reward_model.prompt_format = 'chat', but the tokenizer of {recipe.model.path!r} has no chat template; "
            "take 'plain', or 'auto', which looks for itself"
        )
    return "plain" if wanted == "plain" else own


def _know_again(path: Path, data: dict[str, Any]) -> None:
    """Write down what is learned from, or refuse to go on with something else."""
    if path.exists() and (before := json.loads(path.read_bytes())) != data:
        changed = ", ".join(f"{key}: {before.get(key)} → {data[key]}" for key in data if before.get(key) != data[key])
        raise CheckpointError(
            f"{path.parent} holds a run on other annotations ({changed}). Resume with the files it was started with, "
            "or choose another directory with --out DIR."
        )
    write_atomically(path, to_json(data))
