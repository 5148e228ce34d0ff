"""The prompts of annotation: what each variant asks for, and texts that try to break out of their tags."""

import re
from itertools import product

import pytest
from hypothesis import given, strategies as st

from conversations import FAIR
from text2grad.critics.servers.templates import Template, TemplateName, outcome_in_words
from text2grad.types import Critique, Example, Span

NAMES: tuple[TemplateName, ...] = ("summarization", "code", "qa", "grounded")
EXAMPLE = Example("Add two numbers.", reference="return a + b")
SPAN = Span(0, 1, "negative")


def text(template: Template, response: str = "return a - b", **more: str) -> str:
    (message,) = template.messages(EXAMPLE, response, **more)
    assert message["role"] == "user"
    return message["content"]


@pytest.mark.parametrize(("name", "reasoning", "grounding"), list(product(NAMES, (True, False), (True, False))))
def test_every_variant_asks_for_the_keys_of_its_schema_in_their_order(
    name: TemplateName, reasoning: bool, grounding: bool
) -> None:
    template = Template(name, reasoning)
    schema = template.schema(grounding=grounding)
    keys = ["reasoning"] * reasoning + ["textual_feedback"] * (reasoning and not grounding)
    assert list(schema["properties"]) == schema["required"] == [*keys, "good_spans", "poor_spans"]
    assert schema["additionalProperties"] is False, "servers refuse a strict schema without"
    asked = text(template, feedback="Wrong sign.") if grounding else text(template)
    assert re.findall(r'^  "(\w+)": ', asked, re.MULTILINE) == schema["required"]
    assert "character by character" in asked


def test_with_reasoning_every_quote_must_follow_from_the_critique_and_without_there_is_none() -> None:
    justified = "Every quote follows from your critique"
    for name in NAMES:
        assert justified in text(Template(name))
        assert "Work step by step:" in text(Template(name))
        assert justified not in text(Template(name, reasoning=False))
        assert "step by step" not in text(Template(name, reasoning=False))


def test_the_steps_are_counted_from_one_and_a_critique_is_written_before_its_quotes_are_chosen() -> None:
    assert "\n1. What exactly was asked" in text(Template("qa"))
    assert "\n5. Only then write the critique" in text(Template("qa"))
    assert "Only then" not in text(Template("qa", reasoning=False)) + text(Template("qa"), feedback="Wrong.")


@pytest.mark.parametrize("reasoning", [True, False])
def test_where_people_said_it_already_every_quote_follows_from_their_words(reasoning: bool) -> None:
    assert "- Every quote follows from what the person said:" in text(Template("qa", reasoning), feedback="Wrong.")


def test_the_shortest_piece_of_a_program_is_an_expression() -> None:
    assert "a word, a clause, an expression, a line; not the whole program." in text(Template("code"))
    assert "a word, a clause, a sentence; not the whole answer." in text(Template("qa"))


def test_the_outcome_of_tests_the_reference_and_people_stand_in_the_prompt() -> None:
    tests = outcome_in_words(passed=False, reason="failed", output="assert add(1, 2) == 3")
    shown = text(Template("code"), tests=tests)
    assert "<tests>\nThe tests did not pass (failed).\nassert add(1, 2) == 3\n</tests>" in shown
    assert "<reference>\nreturn a + b\n</reference>" in shown
    assert "<task>\nAdd two numbers.\n</task>" in shown
    assert shown.endswith("<response>\nreturn a - b\n</response>")
    assert "<feedback>\nThe sign is wrong.\n</feedback>" in text(Template("code"), feedback="The sign is wrong.")
    assert "<tests>" not in text(Template("code"))
    assert "<reference>" not in Template("qa").messages(Example("Add.", reference=""), "3")[0]["content"]


def test_a_judge_of_grounded_answers_sees_the_passage_and_no_gold_answer() -> None:
    example = Example("Passage: It was built in 1177.\n\nQuestion: When?", reference="In 1177, by Bénézet.")
    (message,) = Template("grounded").messages(example, "In 1150.")
    assert "Passage: It was built in 1177." in message["content"]
    assert "Does the passage say it?" in message["content"]
    assert "Bénézet" not in message["content"]
    (message,) = Template("qa").messages(example, "In 1150.")
    assert "Bénézet" in message["content"]


def test_a_judge_sees_who_spoke() -> None:
    turns = [{"role": role, "content": text} for role, text in (("user", "Hi"), ("assistant", "Ho"), ("user", "And?"))]
    (message,) = Template("qa").messages(Example(turns), "Well.")
    spoken = "<user>\nHi\n</user>\n\n<assistant>\nHo\n</assistant>\n\n<user>\nAnd?\n</user>"
    assert f"<task>\n{spoken}\n</task>" in message["content"]


@pytest.mark.parametrize(
    ("critique", "reasoning", "grounding", "echo"),
    [
        (Critique("The critique: what is good, what is poor, where, and why.", (SPAN,)), True, False, True),
        (Critique("Which statements are true, which are false or made up"), True, False, True),
        (Critique("Fine.", unmatched=("a quote of a good piece", "...")), True, False, True),
        (Critique("", unmatched=("a quote of a poor piece",)), False, False, True),
        (Critique("", unmatched=("a quote of a poor piece",)), True, True, True),
        (Critique("What is good: the day.", (SPAN,)), True, False, False),
        (Critique("A sentence."), True, False, False),  # too short to be a copy
        (Critique("Fine.", (SPAN,), unmatched=("a quote of a poor piece",)), True, False, False),
        (Critique("Answer with one JSON object, its keys in this order", (SPAN,)), False, False, False),
    ],
)
def test_a_critique_that_repeats_the_instructions_is_an_echo(
    critique: Critique, reasoning: bool, grounding: bool, echo: bool
) -> None:
    assert Template("qa", reasoning).is_echo(critique, grounding=grounding) == echo


def test_what_changes_comes_last_where_servers_can_reuse_the_beginning() -> None:
    one, other = (text(Template("qa"), response) for response in ("yes", "no"))
    assert one[: one.index("<task>")] == other[: other.index("<task>")]


def test_long_output_of_tests_keeps_its_end() -> None:
    said = outcome_in_words(passed=False, reason="error", output="x" * 9_000 + "\nNameError: a")
    assert len(said) < 2_100
    assert said.endswith("NameError: a")
    assert outcome_in_words(passed=True, reason="passed", output=" \n") == "All tests passed."


@given(st.lists(st.sampled_from(["</response>", "<response>", "</response-1>", "</task>", "\n", "x"])).map("".join))
def test_no_response_ends_its_own_tag(response: str) -> None:
    content = text(Template("qa"), response)
    begun = content.rindex("The answer to judge:\n") + len("The answer to judge:\n")
    found = re.fullmatch(r"<(response(?:-\d+)?)>\n(.*)\n</\1>", content[begun:], re.DOTALL)
    assert found is not None
    assert found[2] == response
    assert f"</{found[1]}>" not in response


# Conversations.


@pytest.mark.parametrize(("name", "reasoning", "grounding"), list(product(NAMES, (True, False), (True, False))))
def test_of_a_conversation_quotes_name_their_turn_and_results_of_tools_are_data(
    name: TemplateName, reasoning: bool, grounding: bool
) -> None:
    template = Template(name, reasoning)
    asked = text(template, FAIR, feedback="Wrong day.") if grounding else text(template, FAIR)
    assert "You judge the turns 1, 3, which a language model wrote." in asked
    assert "results of tools, are data and are not quoted." in asked
    assert '"good_spans": [{"turn": 1, "quote": "a quote of a good piece"}, "..."]' in asked
    assert "<turn-2-tool>\nLyon: Friday\n</turn-2-tool>\n\n<turn-3-assistant>\nIn Lyon" in asked
    assert "<task>" not in asked, "the conversation begins with it"
    quote = template.schema(grounding=grounding, turns=True)["properties"]["poor_spans"]["items"]
    assert quote["required"] == list(quote["properties"]) == ["turn", "quote"]
    assert quote["additionalProperties"] is False
    assert re.findall(r'^  "(\w+)": ', asked, re.MULTILINE) == template.schema(grounding=grounding)["required"]


def test_of_a_single_response_no_turn_is_spoken() -> None:
    assert "turn" not in text(Template("qa")).replace("return", "")
    assert Template("qa").schema(grounding=False)["properties"]["good_spans"]["items"] == {"type": "string"}
