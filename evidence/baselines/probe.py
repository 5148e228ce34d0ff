"""The probe: a reward model that a few hundred annotations can train, a linear reading of a frozen language model.

    annotations → features from a frozen base → logistic regression → critiques with a span per run of equal labels

Where annotations are few, the base knows more about a response than training brings it to write: see
evidence/docs/baselines.md. The base reads the prompt of a generative reward model, which holds task prompt and
response, and behind it the response again, so that each word is read after the whole response. The state of a unit (a
word, a sentence or a line) is the mean over its tokens at one layer; a softmax over a linear function of it gives the
shares of the unit's words that are negative, neutral and positive (`probe_training`). Nothing of the base is trained.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from evidence.baselines.encoding import check_text_ids, too_long
from evidence.commands.token_rewards import label_tokens
from text2grad.align import encode
from text2grad.align.delta import AlignSettings
from text2grad.align.offsets import Range
from text2grad.errors import ConfigError, ModelError, check_known
from text2grad.feedback.words import split_steps, words_of
from text2grad.files import to_json, write_atomically
from text2grad.models.pretrained import context_of, load_policy, load_tokenizer
from text2grad.models.prompts import check_ids
from text2grad.progress import Progress
from text2grad.reward_models.prompts import critique_prompts
from text2grad.types import Critique, Example, PromptFormat, Span

Unit = Literal["words", "sentences", "lines"]
SETTINGS_FILE, WEIGHTS_FILE = "probe.json", "probe.safetensors"
ROWS_AT_ONCE = 8  # most responses per forward pass; less changes memory, not results
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


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """What a probe reads, and when it marks: saved with the probe as probe.json.

    Attributes:
        base: directory or name of the base.
        layer: the layer whose states are read, from 1.
        labels: −1, 0 or 1 for each row of the trained reading.
        unit: what is labelled.
        prompt_format: "chat" reads the prompt with the tokenizer's chat template, "plain" without.
        vote_threshold: a unit is marked if its probability of positive, or of negative, is at least this high.

    Raises:
        ConfigError: if there is no such unit, or the threshold is not in (0, 1].
    """

    base: str
    layer: int
    labels: tuple[int, ...]
    unit: Unit = "sentences"
    prompt_format: PromptFormat = "plain"
    vote_threshold: float = 0.5

    def __post_init__(self) -> None:
        """Check the settings."""
        check_known("unit", self.unit, get_args(Unit))
        if not 0 < self.vote_threshold <= 1:
            raise ConfigError(f"vote_threshold must be above 0 and at most 1, got {self.vote_threshold}")


class ProbeRewardModel:
    """A critic that labels words, sentences or lines: `model(examples, responses)` returns critiques with spans."""

    def __init__(self, model: Any, tokenizer: Any, linear: Linear, settings: ProbeSettings) -> None:
        """Take a frozen causal language model, its tokenizer, and what was learned on its features.

        Raises:
            ModelError: if the base has not this layer, states of another width, or an embedding without some ids of
                the tokenizer.
        """
        width, config = linear.weight.shape[1], model.config.get_text_config()
        depth = config.num_hidden_layers
        if not 1 <= settings.layer <= depth or width != config.hidden_size:
            raise ModelError(
                f"the probe reads layer {settings.layer} with {width} dimensions, and {settings.base} has "
                f"{depth} layers with {config.hidden_size}; name the base that it was trained on"
            )
        check_text_ids(model, tokenizer)
        self.model, self.tokenizer, self.linear = model.eval().requires_grad_(False), tokenizer, linear
        self.settings, self.rows_at_once = settings, ROWS_AT_ONCE

    def __call__(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Critique]:
        """Return one critique per response: a span for each run of equally marked units, named in the feedback.

        A response that does not fit into the base's context with its prompt gets a failed critique.
        """
        scores = self.scores(examples, responses)
        return [
            scored if isinstance(scored, Critique) else self._critique(response, scored)
            for scored, response in zip(scores, responses, strict=True)
        ]

    def scores(self, examples: Sequence[Example], responses: Sequence[str]) -> list[list[UnitScore] | Critique]:
        """Return the probabilities for each unit of each response, or the failed critique of the response."""
        unit, labels = self.settings.unit, self.settings.labels
        rows = rows_of(self.tokenizer, examples, responses, unit, self.settings.prompt_format)
        fits, failed = fitting(rows, context_of(self.model))
        scores: dict[int, list[UnitScore] | Critique] = dict(failed)
        read = read_states(self.model, rows, fits, [self.settings.layer], self.rows_at_once)
        for row, states in zip(fits, read, strict=True):
            probabilities = dict(zip(labels, self.linear(states[:, 0]).T.tolist(), strict=True))
            none = [0.0] * len(states)
            pairs = zip(probabilities.get(-1, none), probabilities.get(1, none), strict=True)
            places = SPLITS[unit](responses[row])
            scores[row] = [UnitScore(*place, *pair) for place, pair in zip(places, pairs, strict=True)]
        return [scores[row] for row in range(len(rows))]

    def _critique(self, response: str, scores: Sequence[UnitScore]) -> Critique:
        threshold = self.settings.vote_threshold
        marked = groupby(scores, key=lambda score: mark_of(score.negative, score.positive, threshold))
        spans, lines = [], []
        for label, run in ((label, list(run)) for label, run in marked):
            if label:
                name: Literal["negative", "positive"] = "negative" if label < 0 else "positive"
                share = sum(getattr(score, name) for score in run) / len(run)
                spans.append(Span(run[0].start, run[-1].end, name))
                lines.append(f'"{response[run[0].start : run[-1].end]}": {name} ({share:.2f})')
        return Critique("\n".join(lines), tuple(spans))

    def save(self, directory: Path) -> None:
        """Write probe.safetensors and probe.json, which names the base; of the base only config.json is copied.

        A state of the base is saved, too, so that a directory with another model in it is noticed.
        """
        from safetensors.torch import save_file

        directory.mkdir(parents=True, exist_ok=True)
        tensors = {**self.linear._asdict(), WITNESS: self._witness()}
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / WEIGHTS_FILE)
        write_atomically(directory / SETTINGS_FILE, to_json(asdict(self.settings)))
        self.model.config.save_pretrained(directory)  # `text2grad plan` reads it

    @classmethod
    def load(cls, directory: str | Path, *, trust_remote_code: bool = False) -> "ProbeRewardModel":
        """Load a saved probe and its base.

        Raises:
            ModelError: if there is no probe, or its base cannot be loaded, or has other states than in training.
        """
        from safetensors.torch import load_file

        settings = saved_probe(directory)
        try:
            tensors = load_file(Path(directory) / WEIGHTS_FILE)
            witness = tensors.pop(WITNESS)
            linear = Linear(**tensors)
        except Exception as error:  # safetensors has its own for a damaged file
            raise ModelError(f"cannot load the probe of {str(directory)!r}: {error}") from error
        try:
            model = load_policy(settings.base, trust_remote_code=trust_remote_code)
            tokenizer = load_tokenizer(settings.base, trust_remote_code=trust_remote_code)
        except ModelError as error:
            raise ModelError(
                f"the probe {str(directory)!r} reads {settings.base!r}, seen from {Path.cwd()}, which "
                "cannot be loaded (run the command where the probe was trained, or change base in "
                f"{Path(directory) / SETTINGS_FILE}): {error}"
            ) from error
        probe = cls(model, tokenizer, linear, settings)
        probe._check_base(witness, str(directory))
        return probe

    def _check_base(self, witness: Any, directory: str) -> None:
        """Refuse a base whose states differ from the states in training."""
        now, centre = self._witness(), self.linear.mean
        difference = float((now - witness).norm() / (witness - centre).norm()) if now.shape == witness.shape else 1.0
        if not difference <= WITNESS_TOLERANCE:  # true of NaN, too
            raise ModelError(
                f"the base {self.settings.base!r} of the probe {directory!r} is another model than in training: its "
                f"states differ by {difference:.0%} (up to {WITNESS_TOLERANCE:.0%} are allowed). Put the training's "
                "model there, or train the probe again"
            )

    def _witness(self) -> Any:
        """Return the mean state of `WITNESS_TEXT` at the probe's layer, [H]; the first token is left out."""
        ids = encode(self.tokenizer, WITNESS_TEXT)[: int(min(context_of(self.model), len(WITNESS_TEXT)))]
        row = Row(ids, [list(range(min(1, len(ids) - 1), len(ids)))])
        [(_, states)] = states_of(self.model, [row], [0], [self.settings.layer], 1)
        return states[0, 0]


def saved_probe(directory: str | Path) -> ProbeSettings:
    """Return the settings of a saved probe.

    Raises:
        ModelError: if there are none, or they cannot be read.
    """
    path = Path(directory) / SETTINGS_FILE
    if not path.exists():
        raise ModelError(
            f"{str(directory)!r} holds no probe ({SETTINGS_FILE}); train one with "
            "`python -m evidence reward-baseline probe`"
        )
    try:
        saved = json.loads(path.read_bytes())
        return ProbeSettings(**{**saved, "labels": tuple(saved["labels"])})
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
    """Return what the base reads for each response; a unit without a token of its own has all tokens."""
    rows = []
    prompts = critique_prompts(tokenizer, examples, responses, prompt_format)
    for prompt, response in zip(prompts, responses, strict=True):
        units = Critique("", tuple(Span(*place, "negative") for place in SPLITS[unit](response)))
        rewards = label_tokens(tokenizer, response, units, AlignSettings())
        if rewards is None:
            rows.append(Row([*prompt, *encode(tokenizer, response)], None))
            continue
        tokens = [[len(prompt) + token for token in own or range(len(rewards.ids))] for own in rewards.tokens]
        rows.append(Row([*prompt, *rewards.ids], tokens))
    return rows


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
    model: Any, rows: Sequence[Row], kept: Sequence[int], layers: Sequence[int], rows_at_once: int, *, title: str = ""
) -> list[Any]:
    """Return the states of each kept row's units, [units, layers, H]; `title` shows the progress.

    Equal rows, as of several annotations of one response, are read once.

    Raises:
        ModelError: if the base's embedding does not have an id of the rows; none is read then.
    """
    distinct = {repr(rows[row]): row for row in kept}
    check_ids(model, [rows[row].ids for row in distinct.values()])
    states: dict[str, Any] = {}
    with Progress(title, len(distinct), unit="response") if title else nullcontext() as bar:
        for row, read in states_of(model, rows, list(distinct.values()), layers, rows_at_once):
            states[repr(rows[row])] = read
            if bar:
                bar.advance(1)
    return [states[repr(rows[row])] for row in kept]


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
