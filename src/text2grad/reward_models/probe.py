"""The probe: a reward model that a few hundred annotations can train, a linear reading of a frozen language model.

    annotations → features from a frozen base → logistic regression → critiques with a span per run of equal labels

Where annotations are few, the base knows more about a response than training brings it to write
(docs/reward_models.md). The base reads the prompt of a generative reward model, which holds task prompt and response,
and behind it the response again, so that each word is read after the whole response. The state of a unit (a word, a
sentence or a line) is the mean over its tokens at one layer; a softmax over a linear function of it gives the shares of
the unit's words that are negative, neutral and positive (`probe_training`). Nothing of the base is trained.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from text2grad.align import AlignSettings, Range, encode, label_tokens
from text2grad.errors import ConfigError, ModelError, check_known
from text2grad.feedback import split_steps, words_of
from text2grad.files import to_json, write_atomically
from text2grad.models import check_ids, check_text_ids, context_of, load_policy, load_tokenizer
from text2grad.progress import Progress
from text2grad.reward_models.prompts import critique_prompts, too_long
from text2grad.types import Critique, Example, PromptFormat, Span

Unit = Literal["words", "sentences", "lines"]
SETTINGS_FILE, WEIGHTS_FILE = "probe.json", "probe.safetensors"
WITNESS = "witness"
"""Name of the tensor by which a saved probe knows its base again: its mean state of `WITNESS_TEXT`."""
WITNESS_TEXT = "The fair opens on Monday, 12 May, at 9:30; bring an umbrella."
WITNESS_TOLERANCE = 0.2
LABELS: Mapping[int, str] = {-1: "negative", 0: "neutral", 1: "positive"}
SPLITS: Mapping[Unit, Callable[[str], list[Range]]] = {
    "words": words_of,
    "sentences": lambda response: split_steps(response, "sentences"),
    "lines": lambda response: split_steps(response, "lines"),
}


class UnitScore(NamedTuple):
    """A word, a sentence or a line with the probabilities of its labels; the rest is that of "neutral"."""

    start: int
    end: int
    negative: float
    positive: float


class Linear(NamedTuple):
    """A softmax over a linear function of F standardized features."""

    weight: Any  # [labels, F]
    bias: Any  # [labels]
    mean: Any  # [F]
    deviation: Any  # [F]

    def __call__(self, features: Any) -> Any:
        """Return the probabilities [units, labels] of features [units, F]."""
        return (((features - self.mean) / self.deviation) @ self.weight.T + self.bias).softmax(-1)


class ProbeRewardModel:
    """A critic that labels words, sentences or lines: `model(examples, responses)` returns critiques with spans."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        linear: Linear,
        *,
        base: str,
        layer: int,
        labels: Sequence[int],
        unit: Unit = "sentences",
        prompt_format: PromptFormat = "plain",
        vote_threshold: float = 0.5,
        rows_at_once: int = 8,
    ) -> None:
        """Take a frozen language model and what was learned on its features.

        Args:
            model: the base, a causal language model.
            tokenizer: its tokenizer.
            linear: the trained reading, with a row for each label.
            base: directory or name of the base, which is loaded with a saved probe.
            layer: the layer whose states are read, from 1.
            labels: −1, 0 or 1 for each row.
            unit: what is labelled.
            prompt_format: "chat" reads the prompt with the tokenizer's chat template, "plain" without.
            vote_threshold: a unit is marked if its probability of positive, or of negative, is at least this high.
            rows_at_once: responses per forward pass; changes memory, not results.

        Raises:
            ConfigError: if there is no such unit, or the threshold is not in (0, 1].
            ModelError: if the base has not this layer, states of another width, or an embedding without some ids of
                the tokenizer.
        """
        check_known("unit", unit, get_args(Unit))
        if not 0 < vote_threshold <= 1:
            raise ConfigError(f"vote_threshold must be above 0 and at most 1, got {vote_threshold}")
        width, config = linear.weight.shape[1], model.config.get_text_config()
        depth = config.num_hidden_layers
        if not 1 <= layer <= depth or width != width_at(model, layer):
            raise ModelError(
                f"the probe reads layer {layer} with {width} dimensions, and {base} has "
                f"{depth} layers with {width_at(model, min(layer, depth))}; name the base that it was trained on"
            )
        check_text_ids(model, tokenizer)
        self.model, self.tokenizer, self.linear = model.eval().requires_grad_(False), tokenizer, linear
        self.base, self.layer, self.labels = base, layer, tuple(labels)
        self.unit: Unit = unit
        self.prompt_format: PromptFormat = prompt_format
        self.vote_threshold, self.rows_at_once = vote_threshold, rows_at_once

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response: a span for each run of equally marked units, named in the feedback.

        A response that does not fit into the base's context with its prompt gets a failed critique.
        """
        scores = self.scores(examples, responses)
        return [
            own if isinstance(own, Critique) else self._critique(response, own)
            for own, response in zip(scores, responses, strict=True)
        ]

    def scores(
        self, examples: Sequence[Example], responses: Sequence[str], *, store: Path | None = None
    ) -> list[list[UnitScore] | Critique]:
        """Return the probabilities for each unit of each response, or the failed critique of the response.

        `store`: directory that keeps the states, as in `train_probe`.
        """
        rows = rows_of(self.tokenizer, examples, responses, self.unit, self.prompt_format)
        fits, failed = fitting(rows, context_of(self.model))
        found: dict[int, list[UnitScore] | Critique] = dict(failed)
        read = read_states(self.model, rows, fits, [self.layer], self.rows_at_once, store)
        for row, states in zip(fits, read, strict=True):
            probabilities = dict(zip(self.labels, self.linear(states[:, 0]).T.tolist(), strict=True))
            none = [0.0] * len(states)
            pairs = zip(probabilities.get(-1, none), probabilities.get(1, none), strict=True)
            found[row] = [
                UnitScore(*place, *pair) for place, pair in zip(SPLITS[self.unit](responses[row]), pairs, strict=True)
            ]
        return [found[row] for row in range(len(rows))]

    def _critique(self, response: str, scores: Sequence[UnitScore]) -> Critique:
        marked = groupby(scores, key=lambda one: mark_of(one.negative, one.positive, self.vote_threshold))
        spans, lines = [], []
        for label, run in ((label, list(run)) for label, run in marked):
            if label:
                name: Literal["negative", "positive"] = "negative" if label < 0 else "positive"
                share = sum(getattr(one, name) for one in run) / len(run)
                spans.append(Span(run[0].start, run[-1].end, name))
                lines.append(f'"{response[run[0].start : run[-1].end]}": {name} ({share:.2f})')
        return Critique("\n".join(lines), tuple(spans))

    def save(self, directory: Path) -> None:
        """Write probe.safetensors and probe.json, which names the base; the base itself is not copied.

        A state of the base is saved, too, so that a directory with another model in it is noticed.
        """
        from safetensors.torch import save_file

        directory.mkdir(parents=True, exist_ok=True)
        tensors = {**self.linear._asdict(), WITNESS: self._witness()}
        tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(tensors, directory / WEIGHTS_FILE)
        names = ("base", "layer", "labels", "unit", "prompt_format", "vote_threshold", "rows_at_once")
        write_atomically(directory / SETTINGS_FILE, to_json({name: getattr(self, name) for name in names}))

    @classmethod
    def load(cls, directory: str | Path, *, trust_remote_code: bool = False, **settings: Any) -> "ProbeRewardModel":
        """Load a saved probe and its base; `settings` replace saved ones.

        Raises:
            ModelError: if there is no probe, or its base cannot be loaded, or has other states than in training.
        """
        from safetensors.torch import load_file

        saved = saved_probe(directory)
        try:
            tensors = load_file(Path(directory) / WEIGHTS_FILE)
            witness = tensors.pop(WITNESS)
            linear = Linear(**tensors)
        except Exception as error:  # safetensors has its own for a damaged file
            raise ModelError(f"cannot load the probe of {str(directory)!r}: {error}") from error
        try:
            model = load_policy(saved["base"], trust_remote_code=trust_remote_code)
            tokenizer = load_tokenizer(saved["base"], trust_remote_code=trust_remote_code)
        except ModelError as error:
            raise ModelError(
                f"the probe {str(directory)!r} reads {saved['base']!r}, seen from {Path.cwd()}, which "
                "cannot be loaded (run the command where the probe was trained, or change base in "
                f"{Path(directory) / SETTINGS_FILE}): {error}"
            ) from error
        probe = cls(model, tokenizer, linear, **{**saved, **settings})
        probe._check_base(witness, str(directory))
        return probe

    def _check_base(self, witness: Any, directory: str) -> None:
        """Refuse a base whose states are not those of the training."""
        now, centre = self._witness(), self.linear.mean
        difference = float((now - witness).norm() / (witness - centre).norm()) if now.shape == witness.shape else 1.0
        if not difference <= WITNESS_TOLERANCE:  # true of NaN, too
            raise ModelError(
                f"the base {self.base!r} of the probe {directory!r} is another model than in training: its states "
                f"differ by {difference:.0%} (up to {WITNESS_TOLERANCE:.0%} are allowed). Put the training's model "
                "there, or train the probe again"
            )

    def _witness(self) -> Any:
        """Return the mean state of `WITNESS_TEXT` at the probe's layer, [H]; the first token is left out."""
        limit = context_of(self.model)
        ids = [id_ for place, id_ in enumerate(encode(self.tokenizer, WITNESS_TEXT)) if place < limit]
        row = Row(ids, [list(range(min(1, len(ids) - 1), len(ids)))])
        [(_, states)] = states_of(self.model, [row], [0], [self.layer], 1)
        return states[0, 0]


def width_at(model: Any, layer: int) -> int:
    """Return the width of the states of a layer, from 1.

    Behind the last layer some models project the states to another width, as OPT-350m, before the output layer.
    """
    config = model.config.get_text_config()
    last = layer == config.num_hidden_layers
    return int(model.get_output_embeddings().weight.shape[1] if last else config.hidden_size)


def is_probe(directory: str | Path) -> bool:
    """Tell whether a directory holds a probe."""
    return (Path(directory) / SETTINGS_FILE).exists()


def saved_probe(directory: str | Path) -> dict[str, Any]:
    """Return the settings of a saved probe.

    Raises:
        ModelError: if there are none, or they cannot be read.
    """
    path = Path(directory) / SETTINGS_FILE
    if not is_probe(directory):
        raise ModelError(
            f"{str(directory)!r} holds no probe ({SETTINGS_FILE}); train one with `text2grad reward --kind probe`"
        )
    try:
        saved = json.loads(path.read_bytes())
        return {**saved, "base": str(saved["base"])}
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"cannot read {path}: {error}; train the probe again") from error


class Row(NamedTuple):
    """What the base reads for a response.

    Attributes:
        ids: the prompt and the response behind it.
        tokens: the positions in `ids` of the tokens of each unit; None if they decode to another text.
    """

    ids: Sequence[int]
    tokens: list[list[int]] | None


def rows_of(
    tokenizer: Any, examples: Sequence[Example], responses: Sequence[str], unit: Unit, prompt_format: PromptFormat
) -> list[Row]:
    """Return what the base reads for each response."""
    rows = []
    prompts = critique_prompts(tokenizer, examples, responses, prompt_format)
    for prompt, response in zip(prompts, responses, strict=True):
        ids, units = range_tokens(tokenizer, response, SPLITS[unit](response))
        tokens = None if units is None else [[len(prompt) + token for token in own] for own in units]
        rows.append(Row([*prompt, *ids], tokens))
    return rows


def range_tokens(
    tokenizer: Any, response: str, ranges: Sequence[Range]
) -> tuple[tuple[int, ...], list[list[int]] | None]:
    """Return the ids of a response, and the positions of the tokens of each range; None if they decode to another text.

    A range without a token of its own has all tokens.
    """
    marked = Critique("", tuple(Span(*place, "negative") for place in ranges))
    rewards = label_tokens(tokenizer, response, marked, AlignSettings())
    if rewards is None:
        return encode(tokenizer, response), None
    return rewards.ids, [list(own or range(len(rewards.ids))) for own in rewards.tokens]


def fitting(rows: Sequence[Row], limit: float) -> tuple[list[int], dict[int, Critique]]:
    """Return the rows that can be read, in the order of reading, and failed critiques of the others."""
    failed = {}
    for number, row in enumerate(rows):
        if len(row.ids) > limit:
            failed[number] = too_long(row.ids, limit)
        elif row.tokens is None:
            reason = "the tokens of the response decode to another text in the probe's tokenizer"
            failed[number] = Critique(reason, status="unparsable")
    fits = [number for number in range(len(rows)) if number not in failed]
    return sorted(fits, key=lambda number: len(rows[number].ids)), failed  # little padding


def read_states(
    model: Any,
    rows: Sequence[Row],
    kept: Sequence[int],
    layers: Sequence[int],
    rows_at_once: int,
    store: Path | None,
    *,
    title: str = "",
) -> list[Any]:
    """Return the states of each kept row's units, [units, layers, H].

    States in the store are read, new ones are written batch by batch.

    Equal rows, as of several annotations of one response, are read once. `title` shows the progress.

    Raises:
        ModelError: if the base's embedding does not have an id of the new rows; none is read then.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    keys = {row: sha256(repr((rows[row], layers)).encode()).hexdigest()[:32] for row in kept}
    found: dict[str, Any] = {}
    for path in store.glob("states-*.safetensors") if store else ():
        with suppress(SafetensorError):  # a damaged file: its rows are read again
            found |= load_file(path)
    distinct = {keys[row]: row for row in kept}
    missing = [row for key, row in distinct.items() if key not in found]
    if missing:
        check_ids(model, [{"input_ids": rows[row].ids} for row in missing])
    done = len(distinct) - len(missing)
    with Progress(title, len(distinct), unit="response", done=done) if title else nullcontext() as bar:
        for start in range(0, len(missing), rows_at_once):
            read = states_of(model, rows, missing[start : start + rows_at_once], layers, rows_at_once)
            new = {keys[row]: states.contiguous() for row, states in read}
            if store:
                write_atomically(store / f"states-{next(iter(new))}.safetensors", save(new))
            found |= new
            if bar:
                bar.advance(len(new))
    return [found[keys[row]] for row in kept]


def states_of(
    model: Any, rows: Sequence[Row], chosen: Sequence[int], layers: Sequence[int], rows_at_once: int
) -> Iterator[tuple[int, Any]]:
    """Yield for each chosen row the mean states of its units at some layers, [units, layers, H], on the CPU."""
    import torch

    for start in range(0, len(chosen), rows_at_once):
        batch = [rows[number] for number in chosen[start : start + rows_at_once]]
        width = max(len(row.ids) for row in batch)
        ids = torch.tensor([[*row.ids, *[0] * (width - len(row.ids))] for row in batch], device=model.device)
        mask = torch.tensor([[1] * len(row.ids) + [0] * (width - len(row.ids)) for row in batch], device=model.device)
        with torch.no_grad():
            read = model.base_model(input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True)
        for place, row in enumerate(batch):
            at_layers = torch.stack([read.hidden_states[layer][place] for layer in layers], 1).float()  # [S, layers, H]
            means = [at_layers[unit].mean(0) for unit in row.tokens or ()]
            empty = at_layers.new_zeros((0, *at_layers.shape[1:]))
            yield chosen[start + place], (torch.stack(means) if means else empty).cpu()
        del read  # before the next batch: it holds the states of all layers


def mark_of(negative: float, positive: float, threshold: float) -> int:
    """Return the label of a unit: 1, −1, or 0 if both probabilities are below the threshold."""
    if max(negative, positive) < threshold:
        return 0
    return -1 if negative >= positive else 1
