"""Settings of the rivals that are no policy gradients: [rival]."""

from typing import Annotated, Literal

from pydantic import Field

from text2grad.config import Recipe
from text2grad.config.section import Count, Fraction, Positive, Section


class RivalConfig(Section):
    """Methods without policy gradient on the same critiques: `python -m evidence rival`."""

    method: Literal["dpo", "ilf", "reflection", "sdpo", "sft_best"] | None = None
    """The method, which `python -m evidence rival METHOD` sets."""
    rounds: Annotated[int, Field(ge=0)] = 0
    """Rounds of equal length: sample from the current policy, then train. 1 is offline; 0 the usual of the method."""
    epochs: Count = 2
    """Passes over the pairs or answers of a round."""
    batch_size: Count = 16
    """Pairs or answers per optimizer step."""
    accumulate: Count = 1
    """Gradient accumulation steps: less memory, more time; dpo takes more where the logits would need over 1 GiB."""
    dpo_beta: Positive = 0.1
    """β of DPO's loss: a larger value stays closer to the start."""
    keep: Annotated[Fraction, Field(gt=0.0)] | None = None
    """Share of the answers to a prompt (without groups: of a round) that is imitated; leave out for the usual share."""
    refiner: Literal["auto", "program", "policy", "server"] = "auto"
    """Writes responses again: the task's program (auto), the policy (auto without task), or [annotate]'s model."""
    refine_prompt: str = (
        "{prompt}\n\nAn answer to this:\n{response}\n\nA critique of the answer:\n{critique}\n\n"
        "Write the answer again, with every fault of the critique mended. Reply with the new answer alone."
    )
    """Prompt of the policy or the server as refiner, and of the teacher in sdpo."""


def rival_of(recipe: Recipe) -> RivalConfig:
    """Return the section [rival] of a recipe, which has it once the package's `register` was called."""
    rival: RivalConfig = getattr(recipe, "rival")  # noqa: B009 (a section that the class of recipes in text2grad lacks)
    return rival
