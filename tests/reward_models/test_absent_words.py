"""Words of a response that its prompt does not contain: as features, and as evidence that a reward model reads."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from text2grad.errors import ConfigError
from text2grad.feedback import split_steps
from text2grad.reward_models import ServerRewardModel
from text2grad.reward_models.absent_words import absent_texts, absent_words
from text2grad.reward_models.prompts import critique_prompts
from text2grad.reward_models.writing import critique_prompt, critique_request, evidence_of, shown
from text2grad.tasks.tiny import word_tokenizer
from text2grad.types import Example

CHAT = Example([{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who sleeps? The old dog."}])


# Words and pairs of the prompt.


def test_words_and_pairs_that_the_prompt_lacks() -> None:
    # prompt: pairs (the, old), (old, dog), (dog, sleeps); response: Old dog, the cat
    #         pairs (old, dog) known, (dog, the) not, (the, cat) not
    assert absent_words("The old dog sleeps.", "Old dog, the cat") == [
        (0.0, 0.0),
        (0.0, 0.5),
        (0.0, 0.0),  # the comma
        (0.0, 1.0),
        (1.0, 1.0),
    ]


def test_pairs_of_the_prompt_go_over_its_punctuation() -> None:
    assert absent_words("an old, brown dog", "old brown; dog") == [(0.0, 0.0)] * 4


def test_a_word_alone_has_no_pairs_and_an_empty_prompt_holds_nothing() -> None:
    assert absent_words("cat", "Cat") == [(0.0, 0.0)]
    assert absent_words("", "a b") == [(1.0, 1.0), (1.0, 1.0)]
    assert absent_words("a", "") == absent_words("a", " ") == []


@given(st.lists(st.sampled_from(["Ann", "sold", "a", "5", "bike", "é"]), min_size=1, max_size=8), st.data())
def test_a_part_of_the_prompt_lacks_nothing(words: list[str], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    part = " ".join(words[start:end]).upper() + "!"
    assert set(absent_words(" ".join(words), part)) == {(0.0, 0.0)}
    assert evidence_of(" ".join(words), part).endswith(": 0%")


# Evidence.


def test_each_sentence_has_a_line_with_the_share_of_its_words_and_the_words() -> None:
    # Three words of four (Ann, bought, 5) are absent from the first prompt sentence; the full stop is no word.
    found = evidence_of("A dog barks at 7.", "Ann bought 5 dog. A dog, at 7, barks! Nine of ten dogs bark at 7")
    assert found.split("\n") == [
        '"Ann bought 5": 75% (Ann, bought, 5)',
        '"A dog, at": 0%',
        '"Nine of ten": 71% (Nine, of, ten, dogs, bark)',  # 5 of 7: dogs and bark are other words
    ]


def test_a_long_sentence_lists_its_first_words_alone() -> None:
    assert evidence_of("", "a b c d e f g h") == '"a b c": 100% (a, b, c, d, e, f, g, h)'
    assert evidence_of("", "a b c d e f g h i") == '"a b c": 100% (a, b, c, d, e, f, g, h, …)'


def test_a_response_without_words_has_no_share() -> None:
    assert evidence_of("a", "") == ""
    assert evidence_of("a", "?!") == '"?!": 0%'


@given(st.text(max_size=60), st.text(max_size=60))
def test_any_text_has_one_line_per_sentence(prompt: str, response: str) -> None:
    sentences = split_steps(response, "sentences")
    lines = evidence_of(prompt, response).split("\n") if sentences else []
    assert len(lines) == len(sentences)
    assert set(absent_texts(prompt, response)) <= set(range(len(response)))


# What a reward model reads.


def test_evidence_is_of_the_whole_prompt_and_its_first_words_alone_are_shown() -> None:
    # "sleeps" stands behind the second word, and is not absent
    assert shown(Example("The dog sleeps."), "A dog sleeps.", "absent_words", 2) == (
        "The dog …\n",
        '"A dog sleeps.": 33% (A)',
        "",
    )
    assert shown(Example("The dog sleeps."), "A dog.", "absent_words", 3).prompt == "The dog sleeps."
    assert shown(Example("The  dog\nsleeps."), "A dog.", prompt_words=2) == ("The  dog …\n", "", "")


def test_without_chat_template_evidence_follows_the_response() -> None:
    example = Example("The dog sleeps.\n")
    assert critique_prompt(example, "A dog.") == "The dog sleeps.\nA dog.\n"
    assert critique_prompt(example, "A dog.", "absent_words") == 'The dog sleeps.\nA dog.\n"A dog.": 50% (A)\n'
    assert critique_prompt(example, "A dog.", prompt_words=1) == "The …\nA dog.\n"


def test_in_a_chat_template_evidence_has_a_heading_behind_the_response() -> None:
    plain, read = critique_request(CHAT, "A dog."), critique_request(CHAT, "A dog.", "spans", "absent_words")
    assert read == f'{plain}\n\n### Words of the response that the prompt lacks\n"A dog.": 50% (A)'
    cut = critique_request(CHAT, "A dog.", "spans", "none", 3)
    assert cut == plain.replace("Be short.\n\nWho sleeps? The old dog.", "Be short.\n\nWho …\n")
    assert cut != plain


@pytest.mark.parametrize(("prompt_format", "of_template"), [("plain", 0), ("chat", 1)])
def test_a_special_token_that_the_evidence_repeats_is_text(prompt_format: Any, of_template: int) -> None:
    tokenizer = word_tokenizer(['cats: a b <|end|> < | end > " : 1 0 % ( ) , … # Words of'], ())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}<|end|>"
    special = tokenizer.convert_tokens_to_ids("<|end|>")
    read: dict[str, Any] = {"evidence": "absent_words", "prompt_words": 1}
    asked = [Example("cats: a b a b a b")], ["<|end|> b"]
    assert critique_prompt(asked[0][0], asked[1][0], **read).count("<|end|>") == 2
    (found,) = critique_prompts(tokenizer, *asked, prompt_format, **read)
    assert found.count(special) == of_template
    (without,) = critique_prompts(tokenizer, *asked, prompt_format, prompt_words=1)
    (whole,) = critique_prompts(tokenizer, *asked, prompt_format, evidence="absent_words")
    assert len(without) < len(found)
    assert found != whole


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"evidence": "absent"}, r"evidence has no value 'absent'"), ({"prompt_words": 0}, r"prompt_words = 0: give 1")],
)
def test_what_cannot_be_shown_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerRewardModel("rm", api_key_env="", **settings)
