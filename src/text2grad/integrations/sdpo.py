"""TRL's `SDPOTrainer` (arXiv 2601.20802), whose feedback comes from critiques of the sampled responses.

TRL reads feedback from the column "privileged_context" before it samples. Here a reward function says it about the
samples: the teacher of sample i is the model that reads, behind the prompt, the words of the critique of sample i.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from trl.experimental.sdpo import sdpo_trainer

from text2grad.errors import ConfigError
from text2grad.feedback import Match
from text2grad.integrations.trl_words import ListeningTrainer, feedback_of


class SDPOTrainer(ListeningTrainer, sdpo_trainer.SDPOTrainer):
    """TRL's `SDPOTrainer`; its reward functions may also return words, which the self-teacher reads.

    What a reward function returns is that of `GRPOTrainer`. In a batch in which a function says words, the column
    "privileged_context" is not read: the feedback of a sample is that of its critiques, and a sample whose critiques
    have none, or cannot be read, has none, as in TRL. `args.feedback_template` frames it. The number of a critique
    without one is the sum of the rewards of its spans; spans have no other part here.

    The log has TRL's entries, and where words are said `critic/failure_rate` and spans per response.
    """

    def __init__(
        self,
        *given: Any,
        reward: Mapping[str, Any] | None = None,
        match: Match = "exact",
        max_failure_rate: float = 0.2,
        **more: Any,
    ) -> None:
        """Take what TRL's `SDPOTrainer` takes, and how words become numbers; see `GRPOTrainer`.

        Raises:
            ConfigError: if a setting is wrong, or this version of TRL is not tested.
        """
        super().__init__(*given, reward=reward, match=match, max_failure_rate=max_failure_rate, **more)
        builder: Any = self.teacher_context_builder
        build = builder.build
        builder.build = lambda *parts, feedbacks=None: build(*parts, feedbacks=self._feedbacks(feedbacks))

    def _check_settings(self) -> None:
        """Refuse settings under which no teacher reads the words, when they are heard.

        Raises:
            ConfigError: with the setting, its value and the way out.
        """
        for name, unread in (("include_environment_feedback", False), ("distillation_weight", 0.0)):
            if getattr(self.args, name) == unread:
                raise ConfigError(
                    f"{name} = {unread}: nothing is learned from the words of the reward functions; give SDPOConfig "
                    "include_environment_feedback=True and a distillation_weight above 0, or return numbers alone"
                )
        super()._check_settings()

    def _feedbacks(self, column: list[Any] | None) -> list[Any] | None:
        """Return the words about each sample of this process; the column where no function said any."""
        if not self.said:
            return column
        critiques = [judged.critiques for judged in self.judged.values()]
        words = [["" if each.failed else feedback_of(each) for each in of_function] for of_function in critiques]
        by_sample = zip(*words or [[""] * len(self.rows)], strict=True)  # nothing may be said in this process
        return ["\n\n".join(filter(str.strip, said)) for said in by_sample]

    def _compute_self_distillation_loss(self, model: Any, inputs: Any, distillation_logits: Any) -> Tensor:
        """Return TRL's loss; where this process has no sample to teach, TRL lets the others wait for its number."""
        if not distillation_logits.loss_mask.any():
            self.accelerator.gather(distillation_logits.student_logits.new_zeros(()))
        loss: Tensor = super()._compute_self_distillation_loss(model, inputs, distillation_logits)
        return loss

    def _log_metric(self, name: str, value: float) -> None:
        """Log a number of this process, as TRL's `GRPOTrainer` does."""
        policy: Any = self.model
        self._metrics["train" if policy.training else "eval"][name].append(value)

    def _log_completion_extra(self, column: str, values: list[Any]) -> None:
        """Log nothing: TRL's `SDPOTrainer` has no table of completions."""
