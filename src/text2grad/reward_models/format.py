"""What a generative reward model writes and how it is decoded: saved with the model as reward_model.json."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from text2grad.errors import ModelError, check_known
from text2grad.feedback import Match, check_votes, critique_from_text
from text2grad.files import readable
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.writing import FORMS, critique_from_labels
from text2grad.types import Critique, PromptFormat

FORMAT_FILE = "reward_model.json"


@dataclass(frozen=True, slots=True)
class CritiqueFormat:
    """The text of critiques, and the decoding of it.

    Attributes:
        form: "spans" quotes the response; "labelled_spans" adds the label behind each quote, and a number for the whole
            response; "tagged_words" labels each word, and adds the number (`writing`).
        write_feedback: False if the model was trained on spans without feedback.
        outcomes: False if no critique of the training had a number for the whole response: with the constraint that of
            a form is null.
        constrain: allow only complete JSON with verbatim quotes, or with one label for each word
            (docs/reward_models.md). Without it, a truncated list of quotes is read up to its last quote.
        limits: further limits of the quotes in constrained decoding.
        match: how quotes are located in the response; with constrained decoding always "exact".
        prompt_format: as in training: "chat" uses the chat template, "plain" does not.
        max_new_tokens: length limit of a critique.
        votes: critiques sampled per response and combined by `vote`; 1 decodes greedily.
        vote_threshold: share of the critiques that must mark a character.

    Raises:
        ConfigError: if there is no such form or prompt format, or `votes` or `vote_threshold` is out of range.
        ModelError: if quotes must stand in feedback that is not written.
    """

    form: str = "spans"
    write_feedback: bool = True
    outcomes: bool = True
    constrain: bool = True
    limits: QuoteLimits = field(default_factory=QuoteLimits)
    match: Match = "exact"
    prompt_format: PromptFormat = "plain"
    max_new_tokens: int = 512
    votes: int = 1
    vote_threshold: float = 0.5

    def __post_init__(self) -> None:
        """Check the settings."""
        check_known("form", self.form, tuple(FORMS))
        check_known("prompt_format", self.prompt_format, get_args(PromptFormat))
        check_votes(self.votes, self.vote_threshold)
        if self.constrain and not self.write_feedback and self.limits.quoted_in_feedback:
            raise ModelError(
                "limits.quoted_in_feedback allows only quotes that the feedback contains, and this model writes no "
                "feedback. Leave it out of critic.quote_limits."
            )


def read_critique(text: str, response: str, format: CritiqueFormat) -> Critique:
    """Parse the text of a critique.

    A quote marks one occurrence for each time that it is listed, as in the training targets: if it marked every
    occurrence, a policy would get more reward for each repetition of a phrase with a positive label.
    """
    form = FORMS[format.form]
    if not form.quotes:
        return critique_from_labels(text, response, form)
    match: Match = "exact" if format.constrain else format.match
    return critique_from_text(text, response, match=match, occurrences="first")


def saved_format(directory: str | Path) -> CritiqueFormat:
    """Return the format in a model's directory; the usual one without a file.

    Raises:
        ConfigError: if the form is unknown.
        ModelError: if the file cannot be read.
    """
    path = Path(directory) / FORMAT_FILE
    if not path.exists():
        return CritiqueFormat()
    with readable(path, "Copy it again, or train the reward model again", ModelError):
        saved = json.loads(path.read_bytes())
        return CritiqueFormat(**{**saved, "limits": QuoteLimits(**saved.get("limits", {}))})
