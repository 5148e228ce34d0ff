"""`text2grad sft`: demonstrations → a fine-tuned policy, in the files of a `MeasuredRun`."""

import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from text2grad.align import added_tokens
from text2grad.config import Recipe
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import Demonstration, hold_out, read_demonstrations
from text2grad.files import to_json
from text2grad.models import (
    MERGED,
    NO_LOSS,
    MeasuredRun,
    Row,
    check_ids,
    context_of,
    conversation_rows,
    format_of,
    held_out_loss,
    load_tokenizer,
    policy_config,
    save_model,
    with_chat_template,
)
from text2grad.progress import Progress, note
from text2grad.runs.prompts import held_out_prompts

CALLS = {"tool_calls", "function_call"}  # fields of a message without which it would teach to stop where it should call


class SFTRun(MeasuredRun):
    """One fine-tuning of a policy; everything that can be checked is checked before a file is written."""

    section, metric = "sft", ("loss", False)

    def __init__(self, recipe: Recipe, *, resume: bool = False) -> None:
        """Read the demonstrations, load the model, and create or open the run's directory.

        Args:
            recipe: sft.model or [model] names the model to train, [sft] sets the training, model.prompt_format the
                form of the prompts.
            resume: continue the run in `sft.out`.

        Raises:
            ConfigError: if a setting is missing, or the directory holds another run.
            DataError: if the demonstrations cannot be used.
            ModelError: if the model cannot be loaded, or its tokenizer has no end of sequence or chat template.
            CheckpointError: if the run was started with other settings or demonstrations.
        """
        super().__init__(recipe, resume=resume)
        learned, held_out, shared = read_demonstration_split(recipe)
        config = policy_config(self.path, trust_remote_code=recipe.model.trust_remote_code)
        self.tokenizer = load_tokenizer(self.path, trust_remote_code=recipe.model.trust_remote_code)
        self.tokenizer = with_chat_template(self.tokenizer, recipe)
        prompts = [(demonstration.where, demonstration.turns[0].prompt) for demonstration in (*learned, *held_out)]
        self.prompt_format = format_of(self.tokenizer, recipe.model.prompt_format, prompts)
        encoded = self._encode(learned, "demonstrations")
        encoded_held_out = self._encode(held_out[: recipe.sft.eval_limit], "held-out demonstrations")
        self.max_tokens = int(min(recipe.sft.max_tokens, context_of(config)))
        fitting, fitting_held_out = _fitting(encoded, self.max_tokens), _fitting(encoded_held_out, self.max_tokens)
        self.rows = [row for rows in fitting for row in rows]
        self.held_out = [row for rows in fitting_held_out for row in rows]
        self.measure = partial(held_out_loss, rows=self.held_out)
        self.model = self.load_model()
        check_ids(self.model, [row["input_ids"] for row in (*self.rows, *self.held_out)])
        self.counts = {
            "learned": len(fitting),
            "tokens": sum(len(row["input_ids"]) for row in self.rows),
            "target_tokens": sum(label != NO_LOSS for row in self.rows for label in row["labels"]),
            "too_long": len(encoded) - len(fitting),
            "shared_prompts": shared,
            "held_out": len(fitting_held_out),
            "held_out_too_long": len(encoded_held_out) - len(fitting_held_out),
        }
        digest = hashlib.sha256(f"{_digest(encoded)} {_digest(encoded_held_out)}".encode()).hexdigest()
        self.open(("model", "sft", "run"), "demonstrations", digest)

    def run(self) -> Path:
        """Train and publish as `MeasuredRun.run`; with LoRA return the directory of the merged model."""
        out = super().run()
        return self.directory / MERGED if self.recipe.model.lora_r else out

    def save(self, model: Any, out: Path, results: dict[str, Any], *, adapter: bool) -> None:
        """Save a policy as an ordinary Hugging Face directory."""
        save_model(model, out)
        self.tokenizer.save_pretrained(out)

    def _encode(self, demonstrations: Sequence[Demonstration], name: str) -> list[list[Row]]:
        """Return the rows of each demonstration."""
        encoded, lost = [], dict[str, list[str]]()
        shown = self.is_main and len(demonstrations) > 5_000  # these take a second or two
        with Progress(f"tokenize {name}", len(demonstrations), unit="demonstration", enabled=shown) as progress:
            for demonstration in demonstrations:
                fields = set[str]()
                try:
                    rows = conversation_rows(self.tokenizer, demonstration.turns, self.prompt_format, lost=fields)
                except DataError as error:
                    raise DataError(f"{demonstration.where}: {error}") from error
                encoded += [] if fields & CALLS else [rows]
                for field in sorted(fields):
                    lost.setdefault(field, []).append(demonstration.where)
                progress.advance()
        told = [
            f"{len(places)} of {len(demonstrations)} {name} are {'left out' if field in CALLS else 'learned in part'}, "
            f'the first {places[0]}: prompts of format "{self.prompt_format}" do not show all of their "{field}"; take '
            "a model whose chat template renders it, or take it out of the file"
            for field, places in lost.items()
        ]
        if not encoded:
            raise DataError(told[0])
        if self.is_main:
            for text in told:
                note(text, warning=True)
            _warn_of_special_tokens(self.tokenizer, demonstrations)
        return encoded


def read_demonstration_split(recipe: Recipe) -> tuple[list[Demonstration], list[Demonstration], int]:
    """Return demonstrations to train on, held-out demonstrations, and the number removed for a held-out prompt.

    Prompts that [data] holds out for the evaluations of `train` are never trained on. Without a file in `sft.held_out`
    they are the held-out demonstrations; if there are none, `sft.held_out` is the share.

    Raises:
        ConfigError: if the recipe names no demonstrations.
        DataError: if a file cannot be used, or a part has no demonstration.
    """
    settings, data = recipe.sft, recipe.data
    files = list(settings.data) or ([data.train] if data.train else [])
    if not files:
        raise ConfigError(
            "neither [sft] data nor [data] train is set: name a JSONL file of demonstrations with --data FILE"
        )
    demonstrations = read_demonstrations(files)
    evaluated = held_out_prompts(recipe)
    learned = [demonstration for demonstration in demonstrations if demonstration.prompt not in evaluated]
    held_out = [demonstration for demonstration in demonstrations if demonstration.prompt in evaluated]
    if isinstance(settings.held_out, str) or not held_out:
        learned, held_out, _ = hold_out(
            learned, settings.held_out, recipe.run.seed, read=lambda path: read_demonstrations([path])
        )
    shared = len(demonstrations) - len(learned) if isinstance(settings.held_out, str) else 0
    if not learned or not held_out:
        raise DataError(
            f"the {len(demonstrations)} demonstrations of {', '.join(files)} leave {len(learned)} to train on and "
            f"{len(held_out)} to measure on: the two have no prompt in common. Add demonstrations of other prompts, or "
            "name a file in sft.held_out"
        )
    return learned, held_out, shared


def _warn_of_special_tokens(tokenizer: Any, demonstrations: Sequence[Demonstration]) -> None:
    """Warn of answers that spell special tokens, such as an end of sequence that was added to them."""
    special = [token.content for token in added_tokens(tokenizer).values() if token.special and token.content]
    said = {each.where: [str(turn.message or turn.answer) for turn in each.turns] for each in demonstrations}
    if spelled := {where: text for where, texts in said.items() for text in special if text in "\0".join(texts)}:
        where, text = next(iter(spelled.items()))
        note(
            f"{len(spelled)} of {len(demonstrations)} demonstrations spell a special token in an answer, the first "
            f"{text!r} in {where}; it is learned as the characters that it has. Each answer gets an end of sequence; "
            "none has to be in the files",
            warning=True,
        )


def _digest(encoded: Sequence[Sequence[Row]]) -> str:
    """Return a hash of the ids of all rows."""
    return hashlib.sha256(b"".join(to_json([row["input_ids"] for row in rows]) for rows in encoded)).hexdigest()


def _fitting(encoded: Sequence[list[Row]], limit: int) -> list[list[Row]]:
    """Return the demonstrations of at most `limit` tokens in each row; a longer demonstration is left out whole."""
    fitting = [rows for rows in encoded if max(len(row["input_ids"]) for row in rows) <= limit]
    if not fitting:
        raise DataError(
            f"all {len(encoded)} demonstrations of a part have more than {limit} tokens (sft.max_tokens, or the "
            "model's context); raise sft.max_tokens, or shorten them"
        )
    return fitting
