"""Responses of several turns: what the policy saw, what tools and environments did, what a killed run asks again."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import said
from said import look
from text2grad.errors import ConfigError, DataError
from text2grad.feedback import critique_to_json
from text2grad.models import sampling
from text2grad.models.continuation import CUT
from text2grad.models.decoding import steps_are_right
from text2grad.models.randomness import step_uniforms
from text2grad.rl.evaluation import held_out_responses
from text2grad.types import Critique, Example, Rollout

CALL = '<tool_call>\n{"name": "look", "arguments": {"place": "Rome"}}\n</tool_call><|im_end|>'
THOUGHT = "<think>\nI look.\n</think>\n\n"
ANSWER = "Sunny.<|im_end|>"
SPOKEN = {  # a call and an answer in the form of each model
    "qwen3": (THOUGHT + CALL, ANSWER),
    "qwen3_instruct_2507": (CALL, ANSWER),
    "qwen3_5_think": ("I look.\n</think>\n\n<tool_call>\n<function=look>\n<parameter=place>\nRome\n</parameter>\n"
                      "</function>\n</tool_call><|im_end|>", "Fine.\n</think>\n\nSunny.<|im_end|>"),
    "glm4moe": ("\n<think></think>\n<tool_call>look\n<arg_key>place</arg_key>\n<arg_value>Rome</arg_value>\n"
                "</tool_call><|observation|>", "\n<think></think>\nSunny.<|user|>"),
    "gptoss": (' to=functions.look<|channel|>commentary json<|message|>{"place": "Rome"}<|call|>',
               "<|channel|>final<|message|>Sunny.<|return|>"),
    "gemma4": ('<|tool_call>call:look{place:<|"|>Rome<|"|>}<tool_call|><|tool_response>', "Sunny.<turn|>"),
    "llama3_1": ('{"name": "look", "parameters": {"place": "Rome"}}<|eot_id|>', "Sunny.<|eot_id|>"),
    "llama3": ('{"name": "look", "parameters": {"place": "Rome"}}<|eot_id|>', "Sunny.<|eot_id|>"),
    "deepseekv3": ("Hm.\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n"
                   '{"place": "Rome"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
                   "Sunny.<｜end▁of▁sentence｜>"),
    "nemotron_3_nano": ("I look.\n</think>\n<tool_call>\n<function=look>\n<parameter=place>\nRome\n</parameter>\n"
                        "</function>\n</tool_call>\n<|im_end|>", "Fine.\n</think>\nSunny.<|im_end|>"),
    "lfm2_v2": ("<|tool_call_start|>[look(place='Rome')]<|tool_call_end|><|im_end|>", ANSWER),
    "smolvlm": ('I look.\n<tool_call>{"name": "look", "arguments": {"place": "Rome"}}</tool_call><end_of_utterance>',
                " Sunny.<end_of_utterance>"),
}  # fmt: skip
KEPT = {"qwen3", "gptoss", "qwen3_instruct_2507", "qwen3_5_think", "llama3_1", "nemotron_3_nano", "gemma4", "lfm2_v2"}


def calls_then_answers(call: str, answer: str, until: str = ": sunny") -> Any:
    return lambda prompt: answer if until in prompt else call


def whole(rollout: Rollout, turns: int) -> tuple[int, ...]:
    """Return all ids before the sampled turn of this number, from 0."""
    ids, at = rollout.prompt_ids, 0
    for given in rollout.given[:turns]:
        ids, at = ids + rollout.response_ids[at : given.place] + given.ids, given.place
    return ids


@pytest.mark.parametrize("name", SPOKEN)
def test_the_ids_of_a_response_are_what_the_policy_saw_and_sampled(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, (call, answer) = said.tokenizer(name), SPOKEN[name]
    prompts = said.force(monkeypatch, made, calls_then_answers(call, answer))
    run = said.trainer(tmp_path / "run", made, ["Weather?", "Sun?"], tools=[look])
    rollouts = run.sample()
    for row, rollout in enumerate(rollouts):
        sampled = [made(text, add_special_tokens=False)["input_ids"] for text in (call, answer)]
        assert list(rollout.response_ids) == [*sampled[0], *sampled[1]]
        assert [prompts[turn][row] for turn in range(2)] == [whole(rollout, turn) for turn in range(2)]
        assert [(turn.role, turn.sampled) for turn in rollout.response.turns] == [
            ("user", False), ("assistant", True), ("tool", False), ("assistant", True)]  # fmt: skip
        assert rollout.response.turns[2].text == "Rome: sunny, 1."
        assert rollout.response.turns[1].tool_calls == ({"name": "look", "arguments": {"place": "Rome"}},)
        assert str(rollout.response) == "".join(made.decode(ids, skip_special_tokens=True) for ids in sampled)
        assert (rollout.truncated, len(rollout.engine_logp)) == (False, len(rollout.response_ids))
    assert (run.toolbox.counts["rewritten"] == 0) is (name in KEPT)
    assert caplog.text.count("tools/rewritten counts such turns") == (name not in KEPT)


def converse(
    out: Path, monkeypatch: pytest.MonkeyPatch, say: Any, tools: Sequence[Any] = (look,), count: int = 1, **given: Any
) -> tuple[Any, list[Rollout]]:
    made = said.tokenizer("qwen3_instruct_2507")
    said.force(monkeypatch, made, say)
    run = said.trainer(out, made, ["Weather?", "Sun?", "Rain?", "Wind?"][:count], tools=list(tools), **given)
    return run, run.sample()


def test_errors_are_answers_and_the_policy_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [CALL.replace("look", "see"), CALL.replace("place", "where"), CALL.replace('"Rome"}', '"Rome"')]
    says = iter([*wrong, ANSWER])
    run, [rollout] = converse(tmp_path / "run", monkeypatch, lambda prompt: next(says))
    told = [turn.text for turn in rollout.response.turns if turn.role == "tool"]
    assert "there is no tool 'see'; tools: look" in told[0]
    assert "unexpected keyword argument 'where'" in told[1]
    assert "cannot be read" in told[2]
    assert (len(rollout.given), rollout.truncated) == (3, False)
    counts = {"turns": 4, "calls": 2, "unreadable": 1, "failed": 3, "rewritten": 0, "cut": 0}
    assert {name: run.toolbox.counts[name] for name in counts} == counts


def test_a_response_ends_with_its_turns_and_its_calls_are_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def search(place: str) -> str:
        """Search.

        Args:
            place: Where.
        """
        asked.append(place)
        return "nothing"

    call = CALL.replace("look", "search")
    _, [rollout] = converse(tmp_path / "run", monkeypatch, lambda prompt: call, [search], max_turns=3)
    assert (len(asked), len(rollout.given), rollout.truncated) == (2, 2, True)
    assert [turn.role for turn in rollout.response.turns][-1] == "assistant"


def test_a_turn_without_an_end_ends_the_response(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, [rollout] = converse(tmp_path / "run", monkeypatch, lambda prompt: CALL, max_new_tokens=30)
    assert (len(rollout.response_ids), rollout.given, rollout.truncated) == (30, (), True)


def test_a_result_without_room_is_cut_and_one_without_any_ends_the_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long(place: str) -> str:
        """Say much.

        Args:
            place: Where.
        """
        return "sunny " * 400

    say = calls_then_answers(CALL.replace("look", "long"), ANSWER, until="sunny sunny")
    run, [rollout] = converse(tmp_path / "run", monkeypatch, say, [long], max_turns=2)
    assert rollout.response.turns[2].text.endswith(CUT)
    # 2 turns of 120 ids and as many of results are the most: 480, and 120 are left for the last turn
    ids = len(rollout.given[0].ids) + rollout.given[0].place
    assert 330 < ids <= 480 - 120
    assert (run.toolbox.counts["cut"], rollout.truncated) == (1, False)
    run, [rollout] = converse(tmp_path / "one", monkeypatch, say, [long], max_turns=2, max_new_tokens=75)
    assert rollout.given[0].place + len(rollout.given[0].ids) <= 225
    monkeypatch.setattr("text2grad.rl.conversations.context_of", lambda model: 1)
    with pytest.raises(DataError, match="leaves no room"):
        converse(tmp_path / "none", monkeypatch, say, [long])


def test_rows_that_go_on_keep_their_numbers_and_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def say(prompt: str) -> str | None:
        return CALL if "sunny" not in prompt and "Sun?" not in prompt else None

    kept, turns, groups, decode = [], [], [], sampling.sample

    def numbers(**how: Any) -> Any:
        turns.append(how["turn"])
        return step_uniforms(**how)

    def grouped(model: Any, prompts: Any, *given: Any, **how: Any) -> Any:
        groups.append([ids[: len(group)] == group for ids, group in zip(prompts, how["caches"].groups, strict=True)])
        return decode(model, prompts, *given, **how)

    monkeypatch.setattr("text2grad.rl.conversations.step_uniforms", numbers)
    monkeypatch.setattr("text2grad.rl.conversations.sample", grouped)
    for rows in (4, 1):
        _, rollouts = converse(tmp_path / f"{rows}", monkeypatch, say, count=4, rows_at_once=rows, max_turns=2)
        kept.append([(rollout.prompt_ids, rollout.response_ids, rollout.given) for rollout in rollouts])
    assert kept[0] == kept[1]
    assert (turns, groups) == ([0, 1, 0, 1], [[True] * 4, [True] * 3] * 2)  # responses to one prompt read it once
    rollouts_free = [rollout for rollout in rollouts if rollout.given]
    assert len(rollouts_free) == 3  # the other one sampled freely from its first token on
    assert len({rollout.response_ids[rollout.given[0].place :] for rollout in rollouts_free}) == 3


def test_a_later_turn_reads_the_end_of_the_turn_before_and_the_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, read = said.tokenizer("qwen3_instruct_2507"), list[int]()
    said.force(monkeypatch, made, calls_then_answers(CALL, ANSWER))
    run = said.trainer(tmp_path / "run", made, ["Weather?"], tools=[look])
    assert steps_are_right(run.model.policy, run.pad_id)
    run.model.policy.register_forward_pre_hook(
        lambda _, args, how: read.append(how["input_ids"].shape[1]), with_kwargs=True
    )
    [rollout] = run.sample()
    assert [tokens for tokens in read if tokens > 1] == [len(rollout.prompt_ids), 1 + len(rollout.given[0].ids)]


def test_the_first_turn_has_the_numbers_of_a_single_response() -> None:
    how = {"seed": 3, "step": 7, "rows": 4, "tokens": 5}
    first = step_uniforms(**how)
    assert step_uniforms(**how, turn=0).equal(first)
    assert not step_uniforms(**how, turn=1).equal(first)
    assert not step_uniforms(**how, turn=2).equal(step_uniforms(**how, turn=1))


def test_a_lack_of_memory_in_a_later_turn_asks_no_tool_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, batches = list[str](), list[int]()

    def search(place: str) -> str:
        """Search.

        Args:
            place: Where.
        """
        asked.append(place)
        return "sunny"

    made = said.tokenizer("qwen3_instruct_2507")
    said.force(monkeypatch, made, calls_then_answers(CALL.replace("look", "search"), ANSWER, until="sunny"))
    forced = sampling.decode

    def lacking(model: Any, prompts: Sequence[Any], *args: Any, **how: Any) -> Any:
        batches.append(len(prompts))
        if len(batches) == 2:
            raise MemoryError
        return forced(model, prompts, *args, **how)

    monkeypatch.setattr(sampling, "decode", lacking)
    rollouts = said.trainer(tmp_path / "run", made, ["Weather?", "Sun?"], tools=[search]).sample()
    assert (batches, asked) == ([2, 2, 1, 1], ["Rome"] * 2)
    assert [len(rollout.given) for rollout in rollouts] == [1, 1]


class Counter:
    """An environment of which every call is counted over all objects."""

    made = 0
    steps: list[str] = []  # noqa: RUF012

    def reset(self, **row: Any) -> str:
        type(self).made += 1
        self.state = 0
        return f" Begin at {row['start']}."

    def step(self, by: int) -> str:
        """Go on.

        Args:
            by: How far.
        """
        self.state += by
        type(self).steps.append(f"{self.state}")
        return f"now {self.state}"

    def get_reward(self) -> float:
        return float(self.state)

    def get_feedback(self) -> list[Any]:
        return [None, {"feedback": "Said it.", "good_spans": ["now 2"]}]


STEP = '<tool_call>\n{"name": "step", "arguments": {"by": 2}}\n</tool_call><|im_end|>'
ROW = {"prompt": [{"role": "user", "content": "Go."}], "start": 0}


def in_world(out: Path, monkeypatch: pytest.MonkeyPatch, say: Any = None, **given: Any) -> Any:
    made = said.tokenizer("qwen3_instruct_2507")
    said.force(monkeypatch, made, say or calls_then_answers(STEP, "It is now 2.<|im_end|>", until="now 2"))
    Counter.made, Counter.steps = 0, []
    return said.trainer(out, made, [ROW], environment_factory=Counter, **given)


def test_an_environment_begins_answers_and_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = in_world(tmp_path / "run", monkeypatch, critic=lambda examples, responses: [0.5] * len(responses))
    [rollout] = run.sample()
    assert rollout.response.turns[0].text == "Go. Begin at 0."
    assert "Go. Begin at 0." in run.tokenizer.decode(list(rollout.prompt_ids))
    assert rollout.response.turns[2].text == "now 2"
    [critique] = run.criticize([rollout])
    assert (critique.outcome, critique.feedback) == (2.5, "Said it.")  # the critic's 0.5 and the environment's 2.0
    [span] = critique.spans
    assert (span.start, span.end, span.turn) == (6, 11, 3)


def test_a_killed_step_asks_nothing_again_that_was_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = in_world(tmp_path / "run", monkeypatch)
    rollouts, critiques = run.sample(), dict(run.said)
    again = in_world(tmp_path / "run", monkeypatch, resume=True)
    assert (again.sample(), Counter.made, Counter.steps) == (rollouts, 0, [])
    assert {row: critique_to_json(c) for row, c in again.said.items()} == {0: critique_to_json(critiques[0])}
    [journal] = (tmp_path / "run" / "critiques").glob("*.jsonl")
    lines = [line for line in journal.read_text().splitlines() if line]
    assert [json.loads(line)["key"][0] for line in lines] == ["begun", "result", "said"]
    journal.write_text("\n".join(lines[:2]) + '\n{"key": ["sa')  # killed before the environment had judged
    again = in_world(tmp_path / "run", monkeypatch, resume=True)
    assert (again.sample(), Counter.made, Counter.steps) == (rollouts, 1, ["2"])  # its state was lost


def test_a_tool_of_a_killed_step_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def search(place: str) -> str:
        """Search.

        Args:
            place: Where.
        """
        asked.append(place)
        if len(asked) == 3:
            raise_interrupt()
        return f"{place}: sunny"

    def raise_interrupt() -> None:
        raise AssertionError("killed")

    made = said.tokenizer("qwen3_instruct_2507")
    call = CALL.replace("look", "search")
    said.force(monkeypatch, made, calls_then_answers(call, ANSWER))
    run = said.trainer(tmp_path / "run", made, ["Weather?", "Sun?"], tools=[search])
    first = run.sample()
    monkeypatch.setattr("text2grad.rl.toolbox.Toolbox.call", lambda *given: pytest.fail("asked again"))
    assert said.trainer(tmp_path / "run", made, ["Weather?", "Sun?"], tools=[search], resume=True).sample() == first
    assert len(asked) == 2


def test_tools_answer_held_out_prompts_too_and_nothing_of_them_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = said.tokenizer("qwen3_instruct_2507")
    said.force(monkeypatch, made, calls_then_answers(CALL, ANSWER))
    run = said.trainer(tmp_path / "run", made, ["Weather?"], tools=[look], eval_dataset=["Sun?", "Rain?"])
    rollouts = held_out_responses(run, range(2))
    assert [len(rollout.given) for rollout in rollouts] == [1, 1]
    assert not list((tmp_path / "run" / "critiques").iterdir())


def test_what_tools_cannot_work_with_is_refused_before_work(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"chat template refuses the chat .*roles 'user', 'assistant', 'tool'"):
        said.trainer(tmp_path / "run", said.tokenizer("phi3"), ["Go."], tools=[look])
    made = said.tokenizer("qwen3")
    with pytest.raises(ConfigError, match="tools need prompts in a chat template"):
        said.trainer(tmp_path / "run", made, ["Go."], tools=[look], prompt_format="plain")
    settings = {"rollout": {"engine": "vllm"}, "engine": {"tensor_parallel_size": 2}}
    with pytest.raises(ConfigError, match=r"tools need engine.tensor_parallel_size = 1"):
        said.trainer(tmp_path / "run", made, ["Go."], tools=[look], **settings)


def test_the_end_of_a_call_ends_a_turn(tmp_path: Path) -> None:
    run = said.trainer(tmp_path / "run", said.tokenizer("gptoss"), ["Go."], tools=[look])
    assert run.tokenizer.convert_tokens_to_ids("<|call|>") in run.eos_ids
    run = said.trainer(tmp_path / "other", said.tokenizer("gptoss"), ["Go."])
    assert run.tokenizer.convert_tokens_to_ids("<|call|>") not in run.eos_ids


def test_critics_see_conversations_as_soon_as_they_are_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Early:
        overlap = 2
        seen: list[list[int]] = []  # noqa: RUF012

        def __call__(self, examples: Sequence[Example], responses: Sequence[Any]) -> list[Critique]:
            self.seen.append([len(response.turns) for response in responses])
            return [Critique("")] * len(responses)

    made = said.tokenizer("qwen3_instruct_2507")
    said.force(monkeypatch, made, lambda prompt: ANSWER if "sunny" in prompt or "Sun?" in prompt else CALL)
    run = said.trainer(tmp_path / "run", made, ["Sun?", "Weather?"], Early(), tools=[look])
    with run.early_critiques() as early:
        run.sample(early)
        assert len(early.critiques()) == 2
    first = run.sample()[0].response.turns[0].text
    assert Early.seen == ([[2], [4]] if first == "Sun?" else [[4, 2]])


def test_a_step_learns_from_turns_with_a_tool_and_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blames(examples: Sequence[Example], responses: Sequence[Any]) -> list[Any]:
        return [{"feedback": "Too short.", "poor_spans": ["Sunny"]} for _ in responses]

    made = said.tokenizer("qwen3_instruct_2507")
    said.force(monkeypatch, made, calls_then_answers(CALL, ANSWER))
    run = said.trainer(tmp_path / "run", made, ["Weather?", "Sun?"], blames, tools=[look], lr=1e-2)
    before = {name: weight.clone() for name, weight in run.trainable.items()}
    step = run.train_step()
    assert any(not weight.equal(before[name]) for name, weight in run.trainable.items())
    marked = [made.decode([token]) for token, delta in zip(step.rollouts[0].response_ids, step.deltas[0], strict=True)
              if delta < 0]  # fmt: skip
    assert "".join(marked) == "Sunny"
    assert step.metrics["engine/logp_gap_max"] < 1e-4  # scores read each turn behind what the policy saw
    assert (step.metrics["tools/calls"], step.metrics["tools/failed"], step.metrics["turns/mean"]) == (2, 0, 2)
    again = said.trainer(tmp_path / "run", made, ["Weather?", "Sun?"], blames, tools=[look], lr=1e-2, resume=True)
    again.train_step()
    assert all(weight.equal(again.trainable[name]) for name, weight in run.trainable.items())
