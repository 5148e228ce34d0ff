"""What the story critic forgives, and where it is careful: names, contractions, cut ends, glued starts."""

import pytest

from evidence.tasks.stories.reading import read_story, split_sentences
from evidence.tasks.stories.words import is_english

PROMPT = "One day, Lily went to the park. She"


def faults(response: str, prompt: str = PROMPT) -> list[str]:
    reading = read_story(prompt, response)
    return [response[e.start : e.end] for e in sorted(reading.invented + reading.repeats)]


def praised(response: str, prompt: str = PROMPT) -> list[str]:
    return [response[s.start : s.end] for s in read_story(prompt, response).clean]


@pytest.mark.parametrize(
    "response",
    [
        " met Zorblax.",  # a name in a sentence
        " ran. Zorblax ran too.",  # a name at its start
        " didn't see Mommy's hat, and I’ll say she’d cry.",  # contractions and possessives, straight and curly
        " saw the other's kitty's yummy ice-cream at 3rd o'clock.",  # endings, hyphens, digits
        ' said, "Woof! Vroom! Oooooh, yay, yummmmy!"',  # sounds, drawn out
        ' said "Noooo, sooooo colourful, ssssh!"',
        " was very very happy and ran round and round and round.",  # said twice on purpose
        " said, b-b-but Bye-bye, a choo-choo!",  # hyphens part a stutter
        " ran, ran, ran.",  # a comma does as well
        ' said no. "No, Tom, no no no!"',
        " saw it. It was big. \n\nBig dogs ran.",  # a full stop parts a repetition
        " said that that had had no effect.",
    ],
)
def test_plain_english_is_not_held_against_a_story(response: str) -> None:
    assert faults(response) == []


@pytest.mark.parametrize("cut", ["nea", "didn'", "zorb-", "the park the park", "wasn", "zorb’"])
def test_the_last_word_of_a_cut_story_is_not_judged(cut: str) -> None:
    assert faults(f" sat down. She saw {cut}") == []
    assert praised(f" sat down. She saw {cut}") == ["sat down."]


@pytest.mark.parametrize("end", [" ", ".", "\n", '"', ", "])
def test_the_last_word_is_judged_once_something_ends_it(end: str) -> None:
    assert faults(f" saw a nearck{end}") == ["nearck"]


def test_an_unfinished_sentence_is_never_positive_but_its_faults_count() -> None:
    assert praised(" sat. The blorp was happy and") == ["sat."]
    assert faults(" sat. The blorp was happy and") == ["blorp"]
    assert faults(" sat. Tom ran to the zoo. Tom ran to the zoo\n") == []
    assert praised(" sat. A Title\nShe ran.") == ["sat.", "She ran."]


def test_a_first_word_may_complete_the_last_word_of_the_prompt() -> None:
    assert faults("ppy was big.", prompt="Once there was a pu") == []
    assert faults("zzle was big.", prompt="Once there was a pup") == ["zzle"]
    assert faults(" ppy was big.", prompt="Once there was a pu") == ["ppy"]
    assert faults("ppy was big.", prompt="Once there was a pu ") == ["ppy"]
    assert faults("'ll go home. The ppy ran.", prompt="Then she") == ["ppy"]
    assert faults("’ll go home.", prompt="Then she") == []
    assert faults(" ate 3 nearck.", prompt="Then she") == ["nearck"]
    assert faults("grabpped it.", prompt="She and") == ["grabpped"]


def test_bytes_that_do_not_decode_and_foreign_letters_are_not_english() -> None:
    assert faults(" saw a c\ufffdt and \ufffd and a 猫 there.") == ["c\ufffdt", "\ufffd", "猫"]
    assert faults(" saw a cafe\u0301q there.") == ["cafe\u0301q"]


def test_words_that_exist_are_told_from_words_that_do_not() -> None:
    invented = ["nearck", "shelp", "birdt", "lookeding", "eated", "grabpped", "zorb's", "hhhhhmqq", "cat'mbles"]
    assert [word for word in invented if is_english(word)] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('Mr. Fox ran. "Run!" said Tom. "No." He sat.', ["Mr. Fox ran.", '"Run!" said Tom.', '"No."', "He sat."]),
        ("It is 3.5 big... Wow!? “Yes!” she said", ["It is 3.5 big...", "Wow!?", "“Yes!” she said"]),
        ("no end\n- - -\n  Next one. ", ["no end", "Next one."]),
        ("He ran. then he sat.", ["He ran.", "then he sat."]),
    ],
)
def test_sentences_end_where_a_reader_would_end_them(text: str, expected: list[str]) -> None:
    assert [text[s.start : s.end] for s in split_sentences(text)] == expected
