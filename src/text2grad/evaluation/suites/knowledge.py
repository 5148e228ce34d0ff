"""Knowledge by lm-eval: ARC-Challenge (`arc`), and any of its tasks or groups (`lm-eval:TASK`).

The loaded model, adapters merged, is given to lm-eval's `HFLM`; lm-eval makes the prompts, scores and per-question
metrics of its task, whose names the figures keep: acc, acc_norm, exact_match/FILTER. Log-probabilities belong to the
plain prompt, as in published figures; `prompt_format = "chat"` applies the model's chat template. A task reads its data
from the hub, or all its splits from the file in `--suite NAME=FILE`: JSONL in the format of the data set on the hub.
"""

import logging
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from text2grad.config import digest_of
from text2grad.errors import ConfigError, DataError, require
from text2grad.evaluation.subjects import LoadedModel
from text2grad.evaluation.suite import Counts, ExaminedSuite, Measure, Source, SuiteOptions, mean_of

ARC = "arc"
ROWS_AT_ONCE = 16
_ARC_DATA = Source(ARC, "the rows of ARC-Challenge's test split as JSONL", "allenai/ai2_arc:ARC-Challenge")
_SPLITS = ("train", "validation", "test", "dev")


class LMEvalSuite(ExaminedSuite):
    """A task or a group of lm-eval."""

    def __init__(self, options: SuiteOptions) -> None:
        """Load the task and its data."""
        self.name, self.options = options.suite, options
        require("lm_eval", extra="lm-eval", purpose=f"suite {self.name}")
        from importlib.metadata import version

        self.task = "arc_challenge" if self.name == ARC else self.name.removeprefix("lm-eval:")
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        self._spec = self._specified()
        self._tasks = self._load()
        self.settings = {
            "lm_eval": version("lm_eval"),
            "tasks": {name: str(task.VERSION) for name, task in self._tasks.items()},
            "data": digest_of(Path(options.data))[:16] if options.data else "hub",
            "limit": options.limit,
            "shots": options.shots,
        }
        self.measures = dict(self._measures())

    def _specified(self) -> Any:
        """Return the task by its name; with data, a group of this task alone, whose splits are the user's file."""
        manager, data = _task_manager(), self.options.data
        if self.task not in manager.all_tasks:
            near = ", ".join(manager.match_tasks([f"*{self.task}*"])[:5])
            raise ConfigError(
                f"--suite {self.name}: lm-eval has no task {self.task!r}" + (f"; similar: {near}" if near else "")
            )
        if data and self.task not in manager.all_subtasks:
            raise ConfigError(
                f"--suite {self.name}=…: {self.task} is a group of lm-eval, each of whose tasks has data of its own; "
                "name one of its tasks"
            )
        files = {"data_files": dict.fromkeys(_SPLITS, data)}
        own = {"task": self.task, "dataset_path": "json", "dataset_name": None, "dataset_kwargs": files}
        return {"group": f"{self.task} of {data}", "task": [own]} if data else self.task

    def _load(self) -> dict[str, Any]:
        """Return lm-eval's tasks by name, with their data."""
        try:
            if self.options.data and not Path(self.options.data).is_file():
                raise DataError(f"there is no file {self.options.data}")
            tasks: dict[str, Any] = _task_manager().load([self._spec])["tasks"]
        except Exception as error:  # data sets have their own errors for every kind of failure
            told = (str(error).splitlines() or [type(error).__name__])[0]
            source = _ARC_DATA if self.name == ARC else Source(self.name, "the rows of its data set as JSONL")
            raise source.unusable(f"the data of lm-eval's task {self.task} cannot be loaded: {told}") from error
        return tasks

    def _measures(self) -> Iterator[tuple[str, Measure]]:
        """Yield the metrics of the task, or of all tasks of a group."""
        for task in self._tasks.values():
            filters = [each["name"] for each in task.config.filter_list or []] or ["none"]
            for metric, higher in task.higher_is_better().items():
                for name in filters:
                    figure, about = _figure(metric, name), f"of lm-eval's task {self.task}"
                    yield figure, mean_of(figure, "higher" if higher else "lower", over=f"with {figure}", about=about)

    def examine(self, model: LoadedModel) -> list[tuple[str, Counts]]:
        """Return the metrics of each question; lm-eval shows the progress on standard error."""
        from lm_eval.evaluator import simple_evaluate
        from lm_eval.models.huggingface import HFLM

        results = simple_evaluate(
            model=HFLM(pretrained=model.model, tokenizer=model.tokenizer, batch_size=ROWS_AT_ONCE),
            tasks=[self._spec],
            task_manager=_task_manager(),
            num_fewshot=self.options.shots,
            limit=self.options.limit,
            log_samples=True,
            bootstrap_iters=0,
            apply_chat_template=model.subject.prompt_format == "chat",
        )
        rows: dict[str, Counts] = {}
        for task, samples in results["samples"].items():
            for sample in samples:
                row = rows.setdefault(f"{task}/{sample['doc_id']}", {})
                for metric in sample["metrics"]:
                    name = _figure(metric, sample["filter"])
                    if isinstance(sample[metric], int | float):
                        row |= {name: float(sample[metric]), f"with {name}": 1.0}
        if not any(rows.values()):
            raise DataError(
                f"suite {self.name}: lm-eval's task {self.task} has no metric of single questions, so that no interval "
                "can be computed; run lm-eval itself for it"
            )
        return list(rows.items())


def _figure(metric: str, name: str) -> str:
    """Return the name of a metric behind a filter."""
    return metric if name == "none" else f"{metric}/{name}"


@cache
def _task_manager() -> Any:
    """Return lm-eval's list of tasks, which takes seconds to read."""
    from lm_eval.tasks import TaskManager

    return TaskManager()
