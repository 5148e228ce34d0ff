"""transformers' callbacks see a training at their usual events, and what they ask for is done."""

from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

import small_run
from text2grad.rl.trainer import Text2GradTrainer


class Seen(TrainerCallback):
    """Writes down each event with the number of finished steps."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.logs: list[dict[str, Any]] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def seen(args: Any, state: Any, control: Any, **what: Any) -> Any:
            self.events.append((name, state.global_step))
            if name == "on_log":
                self.logs.append(what["logs"])
            assert what["model"] is not None
            assert what["processing_class"] is not None
            self.about_run = (args.max_steps, args.seed, state.max_steps)
            return super(Seen, self).__getattribute__(name)(args, state, control, **what)

        return seen


def trainer(out: Path, *callbacks: Any, **settings: Any) -> Text2GradTrainer:
    tokenizer, model = small_run.tokenizer_and_model()
    return Text2GradTrainer(
        model,
        small_run.ColourCritic(),
        small_run.EXAMPLES,
        small_run.recipe(out, **settings),
        eval_dataset=small_run.EXAMPLES[:2],
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def test_the_events_come_in_transformers_order(tmp_path: Path) -> None:
    seen = Seen()
    trainer(tmp_path / "run", seen, run={"steps": 2, "save_every": 2}).train()
    assert seen.events == [
        *[("on_init_end", 0), ("on_train_begin", 0), ("on_evaluate", 0)],
        *[("on_step_begin", 0), ("on_step_end", 1), ("on_log", 1)],
        *[("on_step_begin", 1), ("on_step_end", 2), ("on_log", 2)],
        *[("on_save", 2), ("on_evaluate", 2), ("on_train_end", 2)],
    ]
    assert [logs["step"] for logs in seen.logs] == [1, 2]
    assert seen.about_run == (2, 3, 2)
    assert {"reward/per_response", "kl/per_token", "update/policy_loss", "seconds/update"} <= seen.logs[0].keys()


class Asks(TrainerCallback):
    """Asks for something after the second step."""

    def __init__(self, what: str) -> None:
        self.what = what

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        setattr(control, self.what, state.global_step == 2)
        return control


def test_a_callback_ends_the_run_which_is_saved(tmp_path: Path) -> None:
    path = trainer(tmp_path / "run", Asks("should_training_stop"), run={"steps": 4, "save_every": 4}).train()
    assert path == tmp_path / "run" / "checkpoints" / "step-000002" / "policy"
    assert path.exists()


@pytest.mark.parametrize(("what", "event"), [("should_save", "on_save"), ("should_evaluate", "on_evaluate")])
def test_a_callback_asks_for_a_checkpoint_or_an_evaluation(tmp_path: Path, what: str, event: str) -> None:
    seen = Seen()
    trainer(tmp_path / "run", Asks(what), seen, run={"steps": 3, "save_every": 3}).train()
    assert [step for name, step in seen.events if name == event] == ([0, 2, 3] if event == "on_evaluate" else [2, 3])


def test_callbacks_change_nothing_and_may_be_classes(tmp_path: Path) -> None:
    trainer(tmp_path / "one", TrainerCallback).train()
    trainer(tmp_path / "other").train()
    small_run.assert_same_run(tmp_path / "one", tmp_path / "other")
