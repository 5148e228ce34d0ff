"""The task of tools: its tools, questions and splits, its demonstrations, critic and metric, and its chat template."""

import re
from pathlib import Path
from random import Random
from statistics import fmean

import pytest

import said
from text2grad.align import response_deltas
from text2grad.errors import DataError
from text2grad.feedback import ask
from text2grad.models.fine_tuning import NO_LOSS, conversation_rows, demonstrated
from text2grad.tasks.base import TaskSettings
from text2grad.tasks.tiny import word_tokenizer
from text2grad.tasks.tools import ITEMS, SHOPS, ToolsCritic, ToolsTask, calc, next_step, price
from text2grad.types import Conversation, Example, Turn

TRAIN, HELD_OUT = ToolsTask("train"), ToolsTask("held_out")
FAULTLESS = ToolsTask("train", settings=TaskSettings(faults=0.0))


def question(*items: str, count: str = "", coins: int = 0) -> Example:
    asked = {"items": list(items), "shop": "Kaya", "count": count, "other": "rice", "elsewhere": "Lopez"}
    return Example("?", reference=f"{coins} coins.", meta={"asked": asked})


ONE, THREE, BOTH = question("tea", coins=5), question("tea", count="3", coins=15), question("tea", "wax", coins=12)


def look(item: str = "tea", shop: str = "Kaya") -> str:
    return f'[TOOL_CALLS]price{{"item": "{item}", "shop": "{shop}"}}'


def compute(expression: str) -> str:
    return f'[TOOL_CALLS]calc{{"expression": "{expression}"}}'


def talk(*texts: str) -> Conversation:
    """Return a conversation of a question, and of turns of the policy and of tools, one after the other."""
    turns = (Turn("tool" if n % 2 else "assistant", text, sampled=not n % 2) for n, text in enumerate(texts))
    return Conversation([Turn("user", "?"), *turns])


def judged(example: Example, response: Conversation) -> tuple[str, list[tuple[int | None, str]], list[str]]:
    """Return the words, the negative quotes with their turns, and the positive quotes."""
    [critique] = ask(ToolsCritic(), [example], [response], match="exact")
    quotes = [(s.turn, response.turns[s.turn or 0].text[s.start : s.end], s.label) for s in critique.spans]
    negative = [(turn, text) for turn, text, label in quotes if label == "negative"]
    return critique.feedback, negative, [text for _, text, label in quotes if label == "positive"]


# Tools


def test_the_calculator_computes_and_refuses_what_is_no_sum() -> None:
    assert (calc("3 * 4"), calc("3 + 4"), calc("12 * 12")) == (12, 7, 144)
    for odd in ("3 - 4", "3*4", "3 * 4 * 5", "tea * 4", ""):
        with pytest.raises(ValueError, match="is not two whole numbers"):
            calc(odd)


def test_a_price_belongs_to_an_item_and_a_shop() -> None:
    prices = {(item, shop): price(item, shop) for item in ITEMS for shop in SHOPS}
    assert set(prices.values()) == set(range(2, 13))
    assert prices == {(item, shop): price(item, shop) for item, shop in prices}
    assert len({prices["tea", shop] for shop in SHOPS}) > 3
    with pytest.raises(LookupError, match="Kaya sells no lamp"):
        price("lamp", "Kaya")


# Questions


def test_the_splits_share_no_pair_of_item_and_shop() -> None:
    asked = [[example.meta["asked"] for example in task.examples(1_500)] for task in (TRAIN, HELD_OUT)]
    train, held_out = ({(item, own["shop"]) for own in split for item in own["items"]} for split in asked)
    assert (len(train), len(held_out)) == (112, 16)
    assert not train & held_out


def test_a_question_names_what_it_asks_for_and_a_remark_names_other_things() -> None:
    for example in TRAIN.examples(300):
        asked = example.meta["asked"]
        remark, text = str(example.prompt).split(". ")
        assert {asked["other"], asked["elsewhere"]} <= set(re.findall(r"\w+", remark))
        assert {*asked["items"], asked["shop"]} <= set(re.findall(r"\w+", text))
        assert not {asked["other"], asked["elsewhere"]} & {*asked["items"], asked["shop"]}
        assert re.findall(r"\d", text) == list(asked["count"])


def test_the_plan_looks_up_each_price_computes_and_answers() -> None:
    lookup = [("step", "[TOOL_CALLS]price"), ("item", "tea"), ("shop", "Kaya")]
    assert next_step(ONE, []) == next_step(THREE, []) == next_step(BOTH, []) == lookup
    assert next_step(BOTH, ["5"])[1] == ("item", "wax")
    assert next_step(ONE, ["5"]) == [("answer", "5")]
    assert next_step(THREE, ["5"])[1:] == [("number", "3"), ("sign", "*"), ("number", "5")]
    assert next_step(BOTH, ["5", "7"])[1:] == [("number", "5"), ("sign", "+"), ("number", "7")]
    assert next_step(THREE, ["5", "15"]) == [("answer", "15")]
    assert next_step(BOTH, ["5", "7", "12"]) == [("answer", "12")]


# Demonstrations


def test_a_demonstration_without_faults_is_right_in_two_to_four_turns() -> None:
    examples, rng = FAULTLESS.examples(200), Random(0)
    lengths = set()
    for example, response in zip(examples, FAULTLESS.demonstrations(examples, rng), strict=True):
        assert isinstance(response, Conversation)
        calls = len(response.starts()) - 1
        lengths.add(calls + 1)
        asked = example.meta["asked"]
        assert calls == len(asked["items"]) + (asked["count"] > "" or len(asked["items"]) == 2)
        assert FAULTLESS.score(example, response) == {"success_rate": 1.0, "calls_per_question": calls}
        words, negative, positive = judged(example, response)
        assert (negative, "no answer" in words) == ([], False)
        # a lookup has three pieces, a sum four, an answer one
        assert len(positive) == 3 * len(asked["items"]) + 4 * (calls > 1) + 1
    assert lengths == {2, 3, 4}


def test_demonstrations_have_every_fault_and_corruptions_have_more() -> None:
    examples, rng = TRAIN.examples(500), Random(0)
    nouns, shares = set(), []
    for answers in (TRAIN.demonstrations(examples, rng), [TRAIN.corruption(e, rng) for e in examples]):
        shares.append(fmean(TRAIN.score(e, r)["success_rate"] for e, r in zip(examples, answers, strict=True)))
        critiques = ToolsCritic(truths=False)(examples, answers)
        nouns |= {noun for critique in critiques for noun in re.findall(r"the wrong (\w+)", critique.feedback)}
        nouns |= {"none"} if any("There is no answer." in critique.feedback for critique in critiques) else set()
    assert nouns == {"step", "item", "shop", "number", "sign", "answer"}
    # a lookup is right in 0.55² = 0.30, its answer in 0.8 of these; a product or sum in less
    assert 0.02 < shares[1] < shares[0] - 0.03 < 0.27


# The critic


def test_what_follows_from_a_wrong_call_is_judged_by_what_the_tool_said() -> None:
    response = talk(look(shop="Lopez"), "6", compute("3 * 6"), "18", "18 coins.")
    words, negative, positive = judged(THREE, response)
    assert negative == [(1, "Lopez")]
    assert positive == ["[TOOL_CALLS]price", "tea", "[TOOL_CALLS]calc", "3", "*", "6", "18"]
    assert re.search(r'In turn 1 the shop (is|must be) Kaya: "Lopez" is (wrong|the wrong shop)\.', words)
    assert re.search(r'In turn 5 the answer (is|must be) 18: "18" is (right|correct)\.', words)
    assert TRAIN.score(THREE, response) == {"success_rate": 0.0, "calls_per_question": 2.0}


@pytest.mark.parametrize(
    ("example", "texts", "negative", "told"),
    [
        (THREE, [look(), "5", "5 coins."], [(3, "5")], 'turn 3 the step .* calc: "5" is'),
        (ONE, [look(), "5", "7 coins."], [(3, "7")], 'turn 3 the answer .* 5: "7" is'),
        (ONE, [look(), "5", compute("5 + 5")], [(3, "[TOOL_CALLS]calc")], r"There is no answer\."),
        (THREE, [look(), "5", compute("5 + 3"), "8", "8 coins."], [(3, "+")], r'turn 3 the sign .* \*: "\+" is'),
        (THREE, [look(), "5", compute("4 * 5"), "20", "20 coins."], [(3, "4")], 'turn 3 the number .* 3: "4" is'),
        (BOTH, [look(), "5", look(), "5", compute("5 + 5"), "10", "10 coins."], [(3, "tea")], "the item .* wax"),
        (BOTH, [look(), "5", look("wax"), "7", compute("7 + 5"), "12", "12 coins."], [], 'answer .* 12: "12" is'),
        (ONE, [look()[:-1], "error", "5 coins."], [(1, look()[:-1]), (3, "5")], "garbled|nonsense"),
        # a call of the wrong tool is no step of the plan
        (ONE, [compute("3 * 4"), "12", look(), "5", "5 coins."], [(1, "[TOOL_CALLS]calc")], "turn 1 the step .* price"),
    ],
)
def test_the_wrong_piece_is_quoted_with_its_turn(
    example: Example, texts: list[str], negative: list[tuple[int, str]], told: str
) -> None:
    words, found, _ = judged(example, talk(*texts))
    assert found == negative
    assert re.search(told, words)
    assert ("no answer" in words) is texts[-1].startswith("[")


def test_a_turn_without_words_and_an_answer_without_turns_are_judged() -> None:
    assert judged(ONE, talk("", "x", "5 coins."))[1:] == ([(3, "5")], [])
    [critique] = ToolsCritic()([ONE], ["5 coins."])  # as `generate` samples it
    assert [(span.start, span.end, span.label) for span in critique.spans] == [(0, 1, "negative")]
    assert ToolsCritic()([ONE], [Conversation([Turn("user", "?")])])[0].feedback == "There is no answer."


def test_without_truths_the_words_judge_alone() -> None:
    response = talk(look(shop="Lopez"), "6", "6 coins.")
    [bare], [whole] = (ToolsCritic(truths=truths)([ONE], [response]) for truths in (False, True))
    assert bare.spans == whole.spans
    assert "Kaya" not in bare.feedback
    assert re.search(r'"Lopez" is (wrong|the wrong shop)\.', bare.feedback)


def test_an_example_of_another_task_is_refused() -> None:
    with pytest.raises(DataError, match=r"not an example of the task tools: meta\['asked'\] is None"):
        ToolsCritic()([Example("?")], ["5 coins."])


# The metric


@pytest.mark.parametrize(
    ("texts", "right", "calls"),
    [
        ([look(), "5", "5 coins."], 1, 1),
        ([look(), "5", "5"], 1, 1),
        (["5 coins."], 1, 0),
        ([look(), "5", "5 or 6 coins."], 0, 1),
        ([look(), "5", "15 coins."], 0, 1),
        ([look(), "5", "[TOOL_CALLS]calc 5"], 0, 2),
        ([look()], 0, 1),
    ],
)
def test_the_last_turn_is_right_if_its_number_is(texts: list[str], right: int, calls: int) -> None:
    assert TRAIN.score(ONE, talk(*texts)) == {"success_rate": right, "calls_per_question": calls}
    assert TRAIN.score(ONE, texts[-1])["success_rate"] == right


# The tokenizer and the chat template


def test_a_rollout_has_the_ids_that_its_demonstration_teaches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = word_tokenizer([form for word in TRAIN.vocabulary() for form in (word, f" {word}")], TRAIN.symbols)
    made.chat_template = TRAIN.chat_template
    kinds = {(len(e.meta["asked"]["items"]), e.meta["asked"]["count"] > ""): e for e in FAULTLESS.examples(20)}
    assert len(kinds) == 3
    for number, example in enumerate(kinds.values()):
        response = FAULTLESS.demonstration(example, Random(0))
        texts = iter([f"{turn.text}</s>" for turn in response.turns if turn.sampled])
        said.force(monkeypatch, made, lambda prompt, texts=texts: next(texts))  # type: ignore[misc]
        out, limits = tmp_path / str(number), {"max_new_tokens": 12, "max_turns": 4}
        run = said.trainer(out, made, [example], ToolsCritic(), tools=TRAIN.tools, **limits)
        [rollout] = run.sample()
        [row] = conversation_rows(made, demonstrated(example, response), "chat")
        ids, at = list(rollout.prompt_ids), 0
        for given in rollout.given:
            ids, at = [*ids, *rollout.response_ids[at : given.place], *given.ids], given.place
        assert row["input_ids"] == [*ids, *rollout.response_ids[at:]]
        assert [label for label in row["labels"] if label != NO_LOSS] == list(rollout.response_ids)
        assert made.unk_token_id not in row["input_ids"]
        assert [(t.role, t.text) for t in rollout.response.turns] == [(t.role, t.text) for t in response.turns]
        calls = len(rollout.given)
        counts = {"turns": calls + 1, "calls": calls, "unreadable": 0, "failed": 0, "rewritten": 0, "cut": 0}
        assert {name: run.toolbox.counts[name] for name in counts} == counts
        critiques = run.criticize([rollout])
        [delta], _ = response_deltas(made, [rollout], critiques)
        tokens = made.convert_ids_to_tokens(list(rollout.response_ids))
        positive = [token for token, value in zip(tokens, delta, strict=True) if value > 0]
        assert positive == [word for word in tokens if word not in (*TRAIN.symbols[4:], " coins", ".", "</s>")]
        assert min(delta) == 0
