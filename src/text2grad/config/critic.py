"""Settings of the critic and of its rewards: [critic], [reward]."""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import Field

from text2grad.config.section import Count, Fraction, Listed, Section, Weights
from text2grad.types import Placement

QuoteLimit = Literal["whole_words", "one_list", "quoted_in_feedback", "verbatim"]


class CriticConfig(Section):
    """The critic of the policy's responses."""

    use: str = ""
    """ "module:name" of a Python critic; empty takes `model`, or else the critic of the built-in task."""
    model: str = ""
    """Directory of a reward model; for kind = "server" the model's name on the server."""
    kind: str = "generative"
    """Kind of `model`: generative and server write critiques, here or on [server]."""
    match: Literal["exact", "normalized"] = "exact"
    """How a quote in a critique's text is found in the response."""
    thoughts: Literal["hide", "show"] = "hide"
    """Whether the critic sees the thoughts of a model that reasons; hidden, an outcome still reaches them through γ."""
    constrain: bool | None = None
    """Constrain decoding to JSON with verbatim quotes, or a label per word; leave out for the saved setting (true)."""
    quote_limits: Annotated[tuple[QuoteLimit, ...], Listed] | None = None
    """Limits of constrained quotes: "whole_words", "one_list", "quoted_in_feedback", "verbatim"; default: as saved."""
    votes: Count | None = None
    """Critiques sampled per response, which vote on each character; leave out for the saved setting (1)."""
    max_failure_rate: Fraction = 0.25
    """Stop the run when a larger share of the last critiques (100 or one batch) could not be read."""

    def asking(self, tokenizer: Any = None, prompts: Iterable[Sequence[int]] = ()) -> dict[str, Any]:
        """Return how `ask` asks the critic about responses to prompts, whose ids may all end with an open thought."""
        columns = zip(*(ids[:-25:-1] for ids in prompts), strict=False)  # from the last ids on
        common = [column[0] for column in takewhile(lambda column: len(set(column)) == 1, columns)]
        end = str(tokenizer.decode(common[::-1])) if common else ""
        return {"match": self.match, "prompt_end": end if self.thoughts == "hide" else None}

    @property
    def learned(self) -> bool:
        """True when the critic is a reward model: `use`, a critic in Python, comes before `model`."""
        return bool(self.model) and not self.use


class RewardConfig(Section):
    """From spans to the reward on each token (section 3.3, Appendix I)."""

    positive: float = 1.0
    """Reward of a token in a positive span."""
    negative: float = -1.0
    """Reward of a token in a negative span."""
    unlabelled: float = 0.0
    """Reward of a token in no span: 0 in the paper; +1 in the published KodCode trainer, which rewards length."""
    truncated: float = 0.0
    """Reward added on the last token of a truncated response."""
    placement: Placement = "spans"
    """Place of rewards: each token; summed at the end of lines, sentences, clauses, responses; or one verdict."""
    mode: Literal["strict", "contract", "expand"] = "expand"
    """Tokens of a span: all that it touches (expand), only tokens inside (contract), exact boundaries only (strict)."""
    weighting: str = "uniform"
    """Weights of the tokens of a span (Appendix I.1): "uniform", "linear_decay", or a name that is registered."""
    overlap: Literal["cancel", "negative_wins", "last_wins"] = "cancel"
    """Reward of a token in a positive and in a negative span: 0, the negative one, or the later one."""
    span_mass: Literal["token", "span", "response"] = "token"
    """Total reward of a span: 1 per token; 1, shared by its tokens; or 1 per token divided by the response length."""
    severity: Weights = Field(default={}, validate_default=True)
    """Weight of a span by its severity, |δ| of its tokens: {major = 1.0, minor = 0.3}; 1 for a name that is missing."""
    raters: Weights = Field(default={}, validate_default=True)
    """The same by its rater; 0 leaves a rater's marks out. The weights of a span are multiplied, also with its own."""
    categories: Weights = Field(default={}, validate_default=True)
    """The same by its category."""

    @property
    def weights(self) -> dict[str, Weights]:
        """The three tables by the attribute of a span whose values they weigh."""
        return {"severity": self.severity, "rater": self.raters, "category": self.categories}
