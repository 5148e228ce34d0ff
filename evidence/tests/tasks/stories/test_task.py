"""The story critic's spans and sentences, and the metrics, checked by hand and on a real model."""

import itertools
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from evidence.tasks.stories import words as _story_words
from evidence.tasks.stories.openings import story_openings
from evidence.tasks.stories.task import StoryCritic, story_metrics
from places import STORIES as MODEL
from text2grad import Critique, Example
from text2grad.errors import ConfigError

pytest.importorskip("spellchecker", reason="the story critic needs pyspellchecker")

PROMPT = "One day, Lily went to the park. She"


def critique(response: str, prompt: str = PROMPT) -> Critique:
    (result,) = StoryCritic()([Example(prompt=prompt)], [response])
    return result


def quotes(response: str, label: str, prompt: str = PROMPT) -> list[str]:
    return [response[s.start : s.end] for s in critique(response, prompt).spans if s.label == label]


def test_an_invented_word_is_a_negative_span_and_the_clean_sentence_a_positive_one() -> None:
    response = " saw a nearck. It was very big."
    found = critique(response)
    assert [(s.start, s.end, s.label) for s in found.spans] == [(7, 13, "negative"), (15, 31, "positive")]
    assert found.feedback == "The word 'nearck' is invented. 1 of 2 sentences reads well."
    assert (found.status, found.outcome, found.unmatched) == ("ok", None, ())


def test_a_phrase_said_twice_is_negative_where_it_is_said_again() -> None:
    response = " ran to the park the park. She was happy. She sat."
    found = critique(response)
    assert [(s.start, s.end, s.label) for s in found.spans] == [
        (17, 25, "negative"),
        (27, 41, "positive"),
        (42, 50, "positive"),
    ]
    assert found.feedback == "'the park' is said twice: 'the park the park'. 2 of 3 sentences read well."


def test_a_phrase_said_four_times_is_one_span_over_the_last_three() -> None:
    response = " ate a red red Red red cake."
    found = critique(response)
    assert [(s.start, s.end, s.label) for s in found.spans] == [(11, 22, "negative")]
    assert found.feedback == "'red' is said 4 times: 'red red Red red'. None of 1 sentences reads well."


def test_a_sentence_said_before_is_negative_the_second_time() -> None:
    response = ' sat down. She went to the zoo. Tom ran. She went, to the zoo!\n"Yes!" "Yes!"'
    found = critique(response)
    assert [(s.start, s.end, s.label) for s in found.spans] == [
        (1, 10, "positive"),
        (11, 31, "positive"),
        (32, 40, "positive"),
        (41, 62, "negative"),
        (63, 69, "positive"),
        (70, 76, "positive"),
    ]
    assert found.feedback == ("The sentence 'She went, to the zoo!' was said before. 5 of 6 sentences read well.")


def test_a_sentence_copied_from_the_prompt_is_said_before() -> None:
    assert quotes(" smiled. One day, Lily went to the park.", "negative") == ["One day, Lily went to the park."]
    assert quotes(" smiled. Then she went to the park.", "negative") == []
    assert quotes(" and sat. Tom ran to the zoo.", "negative", prompt="Tom ran to the zoo") == []
    assert quotes(" was a cat.", "negative", prompt="There was a cat. There was a dog that") == []


def test_several_invented_words_are_named_once_each_in_order() -> None:
    found = critique(" saw a blorp and a zimble. The blorp ate a gack. It was ok.")
    assert found.feedback in {
        "'blorp', 'zimble' and 'gack' are not English words. 1 of 3 sentences reads well.",
        "'blorp', 'zimble' and 'gack' do not exist in English. 1 of 3 sentences reads well.",
        "The words 'blorp', 'zimble' and 'gack' are invented. 1 of 3 sentences reads well.",
    }
    assert [s.label for s in found.spans] == ["negative"] * 4 + ["positive"]


def test_feedback_varies_between_stories() -> None:
    said = {critique(f" saw a nearck in {place}.").feedback for place in ("Rome", "Paris", "Oslo", "Bonn", "York")}
    assert len(said) >= 2


def test_a_story_without_faults_is_praised_in_words_that_fit_its_end() -> None:
    assert critique(" was happy. The end.").feedback == "Every sentence reads well."
    assert critique(" was happy. The en").feedback == (
        "Every finished sentence reads well. The last one is not finished."
    )
    assert critique(" was hap").feedback == "No sentence is finished."
    assert critique(" saw a nearck. The en").feedback.endswith(
        " None of 1 sentences reads well. The last one is not finished."
    )
    assert critique("").feedback == critique(" \n ?! ").feedback == "There is no story to read."
    assert critique("").spans == critique(" \n ?! ").spans == ()


def test_evidence_never_overlaps_even_where_one_fault_lies_in_another() -> None:
    response = " had a blorp blorp. He ate my big blorp. He ate my big blorp."
    found = critique(response)
    assert [response[s.start : s.end] for s in found.spans] == ["blorp", "blorp", "blorp", "He ate my big blorp."]
    assert all(a.end <= b.start for a, b in itertools.pairwise(found.spans))
    assert "'blorp' is said twice: 'blorp blorp'." in found.feedback
    assert quotes(" saw blorp cat blorp cat.", "negative") == ["blorp", "blorp cat"]


def test_quotes_with_an_apostrophe_or_quotation_marks_stay_readable() -> None:
    assert critique(" saw zorb'lin.").feedback.count('"zorb\'lin"') == 1
    said = 'He said, "I don\'t know."'
    assert f"The sentence “{said}” was said before." in critique(f" sat. {said} {said}").feedback


PIECES = [
    "the park",
    " ",
    "nearck",
    ".",
    "\n",
    '"',
    "'",
    "’",
    "Tom",
    "red ",
    "red",
    "!",
    "\ufffd",
    "é",
    "e\u0301",
    "3",
    ",",
]
STORIES = st.one_of(st.text(max_size=120), st.lists(st.sampled_from(PIECES), max_size=40).map("".join))


@given(prompt=STORIES, response=STORIES)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_text_gets_sorted_disjoint_spans_whose_faults_are_quoted(prompt: str, response: str) -> None:
    found = critique(response, prompt)
    assert found == critique(response, prompt)
    assert found.feedback
    assert all(a.end <= b.start for a, b in itertools.pairwise(found.spans))
    for span in found.spans:
        piece = response[span.start : span.end]
        assert span.end <= len(response)
        assert piece
        assert piece == piece.strip()
        assert span.label == "positive" or piece in found.feedback
    metrics = story_metrics([prompt], [response])
    assert 0 <= metrics["invented_share"] <= 1
    assert 0 <= metrics["distinct_2"] <= 1


def test_another_process_writes_the_same_critique() -> None:
    response = " saw a nearck in Oslo."
    code = (
        "from text2grad import Example; from evidence.tasks.stories.task import StoryCritic\n"
        f"import sys; sys.stdout.write(StoryCritic()([Example(prompt={PROMPT!r})], [{response!r}])[0].feedback)"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout == critique(response).feedback


def test_the_critic_judges_each_story_by_its_own_prompt_and_wants_one_each() -> None:
    examples = [Example(prompt="A pu"), Example(prompt=({"role": "user", "content": "Tell me of a ca"},))]
    first, second = StoryCritic()(examples, ["ppy sat.", "ppy sat."])
    assert [s.label for s in first.spans] == ["positive"]
    assert [s.label for s in second.spans] == ["negative"]
    with pytest.raises(ValueError, match="shorter"):
        StoryCritic()(examples, ["one"])


def test_a_missing_spelling_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    _story_words.dictionary.cache_clear()
    monkeypatch.setitem(sys.modules, "spellchecker", None)
    with pytest.raises(ConfigError) as error:
        StoryCritic()
    assert str(error.value) == (
        'the story critic needs spellchecker, not installed here: run pip install -e ".[train]" in the repository of '
        "text2grad"
    )


# Metrics -------------------------------------------------------------------------------------------------


def test_metrics_equal_what_a_hand_counts() -> None:
    # Story 1: Tom saw a blorp | He saw a big big gack -> 10 words, 2 invented, 1 said again, 9 pairs:
    #   Tom-saw saw-a a-blorp blorp-He He-saw (saw-a) a-big big-big big-gack -> 8 different.
    # Story 2: saw a dog. saw -> 4 words, none invented, 3 pairs: saw-a (again) a-dog dog-saw -> 2 new.
    metrics = story_metrics(["x", "y"], [" Tom saw a blorp. He saw a big big gack.", " saw a dog. saw"])
    assert metrics == pytest.approx(
        {
            "invented_share": 2 / 14,
            "stories_with_invented": 1 / 2,
            "mean_words": 7.0,
            "distinct_2": 10 / 12,
            "repeated_phrases": 1 / 2,
        }
    )


def test_distinct_pairs_keep_capitals_and_never_span_two_stories() -> None:
    assert story_metrics(["", ""], ["the dog.", "The dog."])["distinct_2"] == 1.0
    assert story_metrics(["", ""], ["the dog.", "the dog."])["distinct_2"] == 0.5


def test_metrics_need_stories_and_a_prompt_for_each() -> None:
    assert story_metrics([""], [""])["distinct_2"] == 0.0
    with pytest.raises(ValueError, match=r"^story_metrics needs at least one story$"):
        story_metrics([], [])
    with pytest.raises(ValueError, match="longer"):
        story_metrics(["a"], ["b", "c"])


# A real model --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_stories() -> tuple[list[str], list[str]]:
    """64 stories of 160 tokens by the untouched stories260k model, at temperature 1."""
    if not MODEL.is_dir():
        pytest.skip("needs ../shared/models/stories260k, which only the project's own machines have")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL, padding_side="left")
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL).eval()
    prompts = [str(example.prompt) for example in story_openings("held_out", 64, seed=0)]
    batch = tokenizer(prompts, return_tensors="pt", padding=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # waiting for each other costs so small a model more than it gains
    torch.manual_seed(0)
    ids = model.generate(
        **{name: batch[name] for name in ("input_ids", "attention_mask")},
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=160,
        eos_token_id=1,
        pad_token_id=0,
    )[:, batch["input_ids"].shape[1] :]
    torch.set_num_threads(threads)
    return prompts, tokenizer.batch_decode(ids, skip_special_tokens=True)


def test_the_untouched_model_invents_about_one_word_in_a_hundred(real_stories: tuple[list[str], list[str]]) -> None:
    metrics = story_metrics(*real_stories)  # over 500 stories: 0.0117, 0.51, 61.8, 0.53, 0.05
    assert 0.006 < metrics["invented_share"] < 0.02
    assert 0.33 < metrics["stories_with_invented"] < 0.7
    assert 50 < metrics["mean_words"] < 75
    assert 0.65 < metrics["distinct_2"] < 0.85
    assert metrics["repeated_phrases"] < 0.25


def test_real_stories_are_mostly_praised(real_stories: tuple[list[str], list[str]]) -> None:
    prompts, stories = real_stories
    critic, examples = StoryCritic(), [Example(prompt=prompt) for prompt in prompts]
    critiques = critic(examples, stories)
    praised = sum(s.end - s.start for c in critiques for s in c.spans if s.label == "positive")
    assert 0.5 < praised / sum(map(len, stories)) < 0.95
