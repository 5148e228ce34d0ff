"""Marks of a probe in the prompt of a reward model: as in training, drawn with the probe's probabilities, and kept."""

import inspect
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch
from hypothesis import given, strategies as st

import small_reward
from constrained_writing import accepts, spelled_by, written
from small_reward import ANNOTATIONS, recipe
from text2grad.config.recipe import make_recipe
from text2grad.errors import ConfigError
from text2grad.feedback.records import Annotation, read_annotations
from text2grad.models.adapters import with_lora
from text2grad.models.pretrained import load_policy, load_tokenizer
from text2grad.reward_models.decoding.constrained import ConstrainedChoice, ConstrainedCritique
from text2grad.reward_models.decoding.quotable import QuoteLimits
from text2grad.reward_models.generative import GenerativeRewardModel, _Request, critique_prompts, probe_of
from text2grad.reward_models.load import critic_from_recipe
from text2grad.reward_models.marks import Marked, annotated_marks, drawn_marks, likeliest_marks, marks_text
from text2grad.reward_models.probe import ProbeRewardModel, UnitScore
from text2grad.reward_models.probe_training import train_probe
from text2grad.reward_models.shared_base import add_role
from text2grad.reward_models.training.run import RewardRun
from text2grad.reward_models.vllm import VLLMRewardModel
from text2grad.reward_models.writing import OPENING, critique_target
from text2grad.tasks.tiny import tiny_llama
from text2grad.types import Critique, CritiqueForm, Example, Span
from tokenizers_made_here import made

TEXT = "So am I. No. Yes?"
UNITS = [(0, 8), (9, 12), (13, 17)]


class Reader:
    """Stands for a probe: given scores for each response, and no reading."""

    unit, vote_threshold = "sentences", 0.5

    def __init__(self, scores: Sequence[Any]) -> None:
        self.given, self.asked = scores, list[tuple[list[str], list[str]]]()
        self.shared, self.model = None, torch.nn.Linear(1, 1)

    def scores(self, examples: Sequence[Example], responses: Sequence[str]) -> list[Any]:
        self.asked.append(([one.prompt_text for one in examples], list(responses)))
        return list(self.given)


def scored(*pairs: tuple[float, float]) -> list[UnitScore]:
    return [UnitScore(*place, *pair) for place, pair in zip(UNITS, pairs, strict=False)]


def writer(probe: Any, **settings: Any) -> GenerativeRewardModel:
    tokenizer = made("gpt2")
    return GenerativeRewardModel(
        tiny_llama(tokenizer, seed=0, context=400),
        tokenizer,
        **{"probe": probe, "form": "labelled_spans", "write_feedback": False, "max_new_tokens": 80, **settings},
    )


def shown(critic: GenerativeRewardModel, ids: Sequence[int]) -> str:
    return str(critic.tokenizer.decode(ids))


# The marks.


def test_a_unit_has_the_most_frequent_label_of_its_words_as_the_form_with_tags_has() -> None:
    # "So am I." has four words, of which two are negative: as in the form, negative. "Yes?" is positive by one of two.
    spans = (Span(0, 5, "negative"), Span(13, 16, "positive"))
    found = annotated_marks(Annotation("q", TEXT, Critique("", spans)), "sentences")
    assert found == [Marked(0, 8, -1), Marked(9, 12, 0), Marked(13, 17, 0)]
    whole = annotated_marks(Annotation("q", TEXT, Critique("", (*spans, Span(16, 17, "positive")))), "sentences")
    assert whole[2] == Marked(13, 17, 1)


def test_the_likeliest_marks_are_those_that_the_probe_makes() -> None:
    scores = scored((0.4, 0.1), (0.1, 0.39), (0.5, 0.5))
    assert [one.label for one in likeliest_marks(scores, 0.4)] == [-1, 0, -1]
    assert [one.label for one in likeliest_marks(scores, 0.39)] == [-1, 1, -1]


@given(
    negative=st.floats(0, 1),
    share=st.floats(0, 1),
    draws=st.integers(1, 40),
    seed=st.integers(0, 5),
)
def test_the_share_of_a_label_is_its_probability_up_to_one_draw(
    negative: float, share: float, draws: int, seed: int
) -> None:
    positive = (1 - negative) * share
    drawn = drawn_marks(scored((negative, positive)), draws, str(seed))
    assert len(drawn) == draws
    labels = [one.label for (one,) in drawn]
    assert abs(labels.count(-1) / draws - negative) <= 1 / draws + 1e-9
    assert abs(labels.count(1) / draws - positive) <= 1 / draws + 1e-9


def test_each_draw_alone_has_the_probabilities() -> None:
    # 4,000 seeds: the standard deviation of a share is at most 0.008.
    firsts = [drawn_marks(scored((0.3, 0.2)), 3, str(seed)) for seed in range(4_000)]
    for number in range(3):
        labels = [one[number][0].label for one in firsts]
        assert abs(labels.count(-1) / 4_000 - 0.3) < 0.04
        assert abs(labels.count(1) / 4_000 - 0.2) < 0.04


def test_units_are_drawn_independently_and_a_seed_repeats_them() -> None:
    both = 0
    for seed in range(1_000):
        drawn = drawn_marks(scored((0.5, 0.0), (0.5, 0.0)), 4, str(seed))
        both += sum(one.label == other.label == -1 for one, other in drawn)
    assert abs(both / 4_000 - 0.25) < 0.03  # of each pair of draws: not the same strata for both units
    again = [drawn_marks(scored((0.5, 0.2), (0.5, 0.0)), 4, "7") for _ in range(2)]
    assert again[0] == again[1]


def test_marks_for_quotes_are_a_line_for_each_run_without_what_is_neither() -> None:
    first, second, third = UNITS
    labelled = [Marked(*first, -1), Marked(*second, -1), Marked(*third, 1)]
    assert marks_text(TEXT, labelled, "spans") == "- So am I. No.\n+ Yes?"
    apart = [Marked(*first, -1), Marked(*second, 0), Marked(*third, -1)]
    assert marks_text(TEXT, apart, "labelled_spans") == "- So am I.\n- Yes?"
    assert marks_text(TEXT, [Marked(*first, 0)], "spans_and_outcome") == marks_text("", [], "spans") == "none"


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        ("dense", "- - - - 0 0 + +"),
        ("tagged_words", "So - am - I - . - No = . = Yes + ? +"),
        ("tagged_sentences", "So am I. - No. = Yes? +"),
        ("numbered_sentences", "1 - 2 = 3 +"),
        ("scores", '["So", -1], ["am", -1], ["I", -1], [".", -1], ["No", 0], [".", 0], ["Yes", 1], ["?", 1'),
    ],
)
def test_marks_for_labels_are_the_labels_that_the_form_writes(form: CritiqueForm, shown: str) -> None:
    marks = [Marked(*place, label) for place, label in zip(UNITS, (-1, 0, 1), strict=True)]
    assert marks_text(TEXT, marks, form) == shown
    assert marks_text("", [], form) == "none"
    target = critique_target(Critique("", (Span(0, 8, "negative"), Span(13, 17, "positive"))), TEXT, form=form)
    assert shown in target


def test_marked_sentences_stand_behind_their_numbers_where_feedback_is_written() -> None:
    marks = [Marked(*place, label) for place, label in zip(UNITS, (-1, 0, 1), strict=True)]
    assert marks_text(TEXT, marks, "numbered_sentences", write_feedback=True) == "1 - 2 = 3 +\n1: So am I.\n3: Yes?"
    assert marks_text("", [], "numbered_sentences", write_feedback=True) == "none"
    for form in get_args(CritiqueForm):
        if form != "numbered_sentences":
            assert marks_text(TEXT, marks, form, write_feedback=True) == marks_text(TEXT, marks, form)


# In the prompt.


@pytest.mark.parametrize(("write_feedback", "text"), [(True, "1 - 2 =\n1: So am I."), (False, "1 - 2 =")])
def test_a_model_that_writes_feedback_reads_the_sentences_of_the_numbers(write_feedback: bool, text: str) -> None:
    probe = Reader([scored((0.9, 0.0), (0.1, 0.1))])
    critic = writer(probe, form="numbered_sentences", write_feedback=write_feedback, max_new_tokens=100)
    [[(ids, _)]] = critic._prompts_of_draws([Example("q: ")], ["So am I. No."], 0)
    assert shown(critic, ids) == f"q: So am I. No.\n{text}\n"


def test_the_greedy_critique_stands_behind_the_likeliest_marks() -> None:
    probe = Reader([scored((0.6, 0.1), (0.1, 0.7), (0.2, 0.2))])
    critic = writer(probe)
    [[(ids, _)]] = critic._prompts_of_draws([Example("q: ")], [TEXT], 0)
    assert shown(critic, ids) == f"q: {TEXT}\n- So am I.\n+ No.\n"
    critic.vote_threshold = 0.1
    [[(ids, _)]] = critic._prompts_of_draws([Example("q: ")], [TEXT], 0)
    assert shown(critic, ids).endswith("- So am I.\n+ No.\n- Yes?\n")
    assert probe.asked == [(["q: "], [TEXT])] * 2


def test_sampled_critiques_stand_behind_marks_with_the_probes_shares() -> None:
    scores = [scored((0.75, 0.0), (0.0, 0.25), (0.0, 0.0)), scored((0.0, 1.0))]
    critic = writer(Reader(scores), votes=8)
    prompts = critic._prompts_of_draws([Example("q: ")] * 2, [TEXT, "So am I."], 8)
    first, second = [[shown(critic, ids) for ids, _ in own] for own in prompts]
    assert sum("\n- So am I.\n" in one for one in first) == 6
    assert sum("\n+ No.\n" in one for one in first) == 2
    assert len(set(first)) > 2
    assert second == ["q: So am I.\n+ So am I.\n"] * 8
    assert [len(own) for own in critic.draw([Example("q: ")] * 2, [TEXT, "So am I."])] == [8, 8]
    other = writer(Reader(scores), votes=8, seed=1)
    assert other._prompts_of_draws([Example("q: ")] * 2, [TEXT, "So am I."], 8)[0] != prompts[0]


def test_marks_of_a_response_do_not_depend_on_the_others_nor_its_place() -> None:
    scores = scored((0.5, 0.2), (0.3, 0.3), (0.1, 0.8))
    alone = writer(Reader([scores]))._prompts_of_draws([Example("q: ")], [TEXT], 5)
    beside = writer(Reader([scores, scores]))._prompts_of_draws([Example("r: "), Example("q: ")], [TEXT] * 2, 5)
    assert beside[1] == alone[0]
    assert [ids[5:] for ids, _ in beside[0]] != [ids[5:] for ids, _ in beside[1]]


@pytest.mark.parametrize("votes", [1, 3])
def test_a_response_that_the_probe_cannot_read_gets_a_failed_critique(votes: int) -> None:
    probe = Reader([Critique("too long", status="unparsable"), scored((0.6, 0.1))])
    asked, critic = ([Example("q: ")] * 2, [TEXT, "So am I."]), writer(probe, votes=votes)
    assert [one.failed for one in critic(*asked)] == [True, False]
    assert [len(own) for own in critic.draw(*asked)] == [votes] * 2


def test_without_a_probe_the_prompt_is_as_before() -> None:
    critic = writer(None)
    prompts = critique_prompts(critic.tokenizer, [Example("q: ")], [TEXT], "plain")
    assert critic._prompts_of_draws([Example("q: ")], [TEXT], 2) == [[(ids, None) for ids in prompts * 2]]


def test_a_chat_names_the_signs_behind_the_evidence() -> None:
    critic = writer(Reader([scored((0.6, 0.1))]), prompt_format="chat", evidence="absent_words")
    critic.tokenizer.chat_template = "{% for message in messages %}[user]{{ message['content'] }}[judge]{% endfor %}"
    [[(ids, _)]] = critic._prompts_of_draws([Example("q")], ["So am I."], 0)
    assert shown(critic, ids).endswith(
        "### Words of the response that the prompt lacks\n"
        '"So am I.": 100% (So, am, I)\n\n### Good (+) and poor (-) parts of the response\n- So am I.[judge]'
    )


# Training, saving, loading.


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with annotations, a base, and a probe of it."""
    directory = tmp_path_factory.mktemp("home")
    small_reward.prepare(directory, "tagged_words")
    base = directory / "base"
    probe, _ = train_probe(base, load_tokenizer(str(base)), ANNOTATIONS, unit="words")
    probe.vote_threshold = 0.3
    probe.save(directory / "probe")
    return directory


def trained(home: Path, out: str, **model: Any) -> RewardRun:
    settings = {"steps": 1, "eval_every": 1, "form": "tagged_words", "probe": str(home / "probe")}
    run = RewardRun(recipe(home, out, reward_model=settings, model=model))
    run.run()
    return run


@pytest.mark.parametrize("lora_r", [0, 2])
def test_it_learns_behind_the_annotators_marks_and_decodes_behind_the_probes(
    home: Path, tmp_path: Path, lora_r: int
) -> None:
    run = trained(home, str(tmp_path / "run"), **({"lora_r": lora_r} if lora_r else {}))
    held_out = {one.prompt for one in read_annotations(tmp_path / "run" / "held_out.jsonl")}
    learned = [one for one in ANNOTATIONS if one.prompt not in held_out]
    texts = [run.tokenizer.decode(row["input_ids"]) for row in run.rows]
    for one, text in zip(learned, texts, strict=True):
        marks = marks_text(one.response, annotated_marks(one, "words"), "tagged_words")
        assert text.startswith(f"{one.prompt}{one.response}\n{marks}\n{{")
    critic = GenerativeRewardModel.load(tmp_path / "run" / "model")
    probe = ProbeRewardModel.load(home / "probe")
    assert critic.probe is not None
    assert (critic.probe.shared is not None) == bool(lora_r)
    assert critic.vote_threshold == probe.vote_threshold == 0.3
    one = ANNOTATIONS[0]
    (scores,) = probe.scores([Example(one.prompt)], [one.response])
    assert not isinstance(scores, Critique)
    [[(ids, _)]] = critic._prompts_of_draws([Example(one.prompt)], [one.response], 0)
    wanted = marks_text(one.response, likeliest_marks(scores, probe.vote_threshold), "tagged_words")
    assert critic.tokenizer.decode(ids) == f"{one.prompt}{one.response}\n{wanted}\n"
    assert "with the marks of a probe" in (tmp_path / "run" / "model" / "README.md").read_text()
    with pytest.raises(ConfigError, match=r"marks of a probe, which vLLM does not give"):
        VLLMRewardModel.load(tmp_path / "run" / "model")


def test_a_probe_on_a_base_with_adapters_reads_the_bare_base_and_leaves_them_trainable(
    home: Path, tmp_path: Path
) -> None:
    trained(home, str(tmp_path / "run"), lora_r=2)
    directory = tmp_path / "run" / "model"
    torch.manual_seed(0)
    policy = with_lora(load_policy(str(home / "base")), r=2, alpha=4, targets=["q_proj", "v_proj"])
    role = add_role(policy, directory)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    before = {name: parameter.requires_grad for name, parameter in policy.named_parameters()}
    critic = GenerativeRewardModel.load(directory, model=role)
    alone = ProbeRewardModel.load(home / "probe")
    assert critic.probe is not None
    asked = [Example(one.prompt) for one in ANNOTATIONS], [one.response for one in ANNOTATIONS]
    found, wanted = critic.probe.scores(*asked), alone.scores(*asked)
    for one, other in zip(found, wanted, strict=True):
        assert not isinstance(one, Critique)
        assert [tuple(own) for own in one] == [pytest.approx(tuple(own)) for own in other]
    assert {name: parameter.requires_grad for name, parameter in policy.named_parameters()} == before
    assert any(before.values())
    critic.probe.save(tmp_path / "again")  # its witness is the bare base's
    ProbeRewardModel.load(tmp_path / "again")


def test_a_probe_of_another_base_has_its_own(home: Path, tmp_path: Path) -> None:
    trained(home, str(tmp_path / "run"), lora_r=2)
    shutil.copytree(home / "base", tmp_path / "other")
    policy = with_lora(load_policy(str(tmp_path / "other")), r=2, alpha=4, targets=["q_proj", "v_proj"])
    critic = GenerativeRewardModel.load(tmp_path / "run" / "model", model=policy)
    assert critic.probe is not None
    assert critic.probe.shared is None


def test_a_recipe_names_such_a_reward_model_as_any_other(home: Path, tmp_path: Path) -> None:
    trained(home, str(tmp_path / "run"))
    directory = tmp_path / "run" / "model"
    assert probe_of(directory) == directory / "probe"
    assert probe_of(home / "base") is None
    critic = critic_from_recipe(make_recipe({"critic": {"model": str(directory)}}))
    assert critic.probe is not None


# With the constraint: the spans are the marks, and the model writes the feedback.


def babbler(probe: Any, form: CritiqueForm, **settings: Any) -> GenerativeRewardModel:
    """A model of random weights, which ends no feedback by itself but where its room ends."""
    return writer(probe, form=form, **{"write_feedback": True, "max_new_tokens": 120, **settings})


@pytest.mark.parametrize("form", get_args(CritiqueForm))
@pytest.mark.parametrize("write_feedback", [True, False])
def test_the_spans_of_a_critique_are_the_marks_whatever_the_model_would_write(
    form: CritiqueForm, write_feedback: bool
) -> None:
    scores = scored((0.9, 0.05), (0.1, 0.1), (0.05, 0.9))
    critic = babbler(Reader([scores]), form, write_feedback=write_feedback, max_new_tokens=200)
    (text,), (critique,) = critic.write([Example("q: ")], [TEXT]), critic([Example("q: ")], [TEXT])
    assert critique.spans == (Span(0, 8, "negative"), Span(13, 17, "positive"))
    assert (critique.status, critique.unmatched) == ("ok", ())
    assert bool(critique.feedback) == write_feedback
    assert critique_target(replace(critique, feedback=""), TEXT, form=form) in replace_feedback(text)
    assert isinstance(json.loads(text), dict)


def replace_feedback(text: str) -> str:
    """The text of a critique with an empty feedback."""
    return json.dumps({**json.loads(text), "textual_feedback": ""}, ensure_ascii=False)


@pytest.mark.parametrize("form", ["labelled_spans", "spans"])
def test_a_mark_on_words_that_occur_twice_stays_in_its_place(form: CritiqueForm) -> None:
    # As a quote alone, "No." would be found at its first place.
    places = [(0, 3), (4, 8), (9, 12)]
    scores = [UnitScore(*place, negative, 0.0) for place, negative in zip(places, (0.1, 0.2, 0.9), strict=True)]
    critic = babbler(Reader([scores]), form)
    assert critic([Example("q: ")], ["No. Yes. No."])[0].spans == (Span(9, 12, "negative"),)


def test_the_share_of_votes_is_the_probes_probability() -> None:
    critic = babbler(Reader([scored((0.75, 0.0), (0.0, 0.25), (0.0, 0.0))]), "labelled_spans", votes=8)
    (drawn,) = critic.draw([Example("q: ")], [TEXT])
    assert sum(Span(0, 8, "negative") in one.spans for one in drawn) == 6
    assert sum(Span(9, 12, "positive") in one.spans for one in drawn) == 2
    critic.vote_threshold = 0.7
    assert critic([Example("q: ")], [TEXT])[0].spans == (Span(0, 8, "negative"),)


@pytest.mark.parametrize(
    ("form", "outcomes", "is_asked"),
    [("spans", True, False), ("labelled_spans", True, True), ("numbered_sentences", False, False)],
)
def test_marks_without_words_and_outcome_cost_no_pass_of_the_model(
    form: CritiqueForm, outcomes: bool, is_asked: bool
) -> None:
    critic = babbler(Reader([scored((0.9, 0.0))]), form, write_feedback=False, outcomes=outcomes)
    passes = list[int]()
    critic.model.register_forward_pre_hook(lambda *_: passes.append(1))
    assert critic([Example("q: ")], ["So am I."])[0].spans == (Span(0, 8, "negative"),)
    assert bool(passes) == is_asked


@pytest.mark.parametrize("begun", ["", '{"textual_feedback": "Hm."'])
@pytest.mark.parametrize("others", [(), (' "spans": [wrong]',)])
def test_a_token_may_lead_from_the_feedback_into_the_spans(begun: str, others: Sequence[str]) -> None:
    # The mask of what is valid before the spans also has tokens that go on otherwise.
    tokenizer = spelled_by([' "spans": [[', *others, *map(chr, range(32, 127))])
    critic = GenerativeRewardModel(
        tiny_llama(tokenizer, seed=0, context=400),
        tokenizer,
        form="labelled_spans",
        outcomes=False,
        probe=cast("Any", Reader([])),
        write_feedback=bool(begun),
    )
    spans = (Span(0, 2, "negative"),)
    request = _Request([1], "So am I.", "", spans=spans)
    critique = critic._constrained(request, 400, critic._labels("So am I.", spans))
    assert written(critique, begun)
    longest = tokenizer.convert_ids_to_tokens(list(ConstrainedChoice([critique], spell_fixed=True).ahead(0)))
    assert critique.state is None
    assert critique.text == f'{begun or OPENING + chr(34)}, "spans": [["So", "poor"]], "outcome": null}}'
    assert 'Ġ"spans":Ġ[[' in longest  # the second bracket belongs to the first span


def test_the_longest_tokens_do_not_take_the_room_of_the_rest() -> None:
    # "abc" + "d" + "e" are three tokens, "ab" + "cde" two: with room for two, "abc" would end too late.
    tokenizer = spelled_by(["abc", "ab", "cde", *map(chr, range(32, 127))])
    critic = GenerativeRewardModel(
        tiny_llama(tokenizer, seed=0, context=400),
        tokenizer,
        outcomes=False,
        probe=cast("Any", Reader([])),
        write_feedback=False,
    )
    spans = (Span(0, 5, "negative"),)
    for spare in range(3):
        labels = critic._labels("abcde", spans)
        room = int(critic._least(labels)) + spare
        critique = critic._constrained(_Request([1], "abcde", "", spans=spans), room, labels)
        taken = tokenizer.convert_ids_to_tokens(list(ConstrainedChoice([critique], spell_fixed=True).ahead(0)))
        assert critique.text == f'{OPENING}", "good_spans": [], "poor_spans": ["abcde"]}}'
        assert ("abc" in taken) == (spare > 0)


def test_the_model_is_asked_up_to_the_end_of_its_feedback_and_not_about_the_spans() -> None:
    critic = babbler(Reader([scored((0.9, 0.0), (0.0, 0.9), (0.9, 0.0))]), "spans")
    asked, chosen = list[bytes](), ConstrainedCritique.take

    def watched(self: ConstrainedCritique, token: int) -> bool:
        before, is_taken = self.written, chosen(self, token)
        if is_taken and inspect.stack()[1].function != "ahead":
            asked.append(before)
        return is_taken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConstrainedCritique, "take", watched)
        (text,) = critic.write([Example("q: ")], [TEXT])
    assert asked[0] == b""  # the opening has the tokens of the training
    assert text.encode().startswith(asked[-1])
    assert len(asked[-1].decode().split('"')) <= 5  # {"textual_feedback": "... and at most the token that ends it


def test_a_critique_for_which_there_is_no_room_has_no_spans() -> None:
    critic = babbler(Reader([scored((0.9, 0.0))]), "labelled_spans")
    critic.max_new_tokens = critic._min_tokens
    (critique,) = critic([Example("q: ")], ["So am I."])
    assert (critique.failed, critique.spans) == (True, ())


def test_without_the_constraint_the_model_repeats_the_marks_itself() -> None:
    critic = babbler(Reader([scored((0.9, 0.0))]), "labelled_spans", constrain=False)
    (critique,) = critic([Example("q: ")], ["So am I."])
    assert critique.failed  # random weights write no JSON
    assert critic._prompts_of_draws([Example("q: ")], ["So am I."], 0)[0][0].spans is None


def test_the_same_tokenizer_serves_a_model_without_a_probe() -> None:
    critic = babbler(Reader([scored((0.9, 0.0))]), "labelled_spans")
    alone = GenerativeRewardModel(critic.model, critic.tokenizer, form="labelled_spans", write_feedback=False)
    assert all(one.status == "ok" for model in (alone, critic) for one in model([Example("q: ")], ["So am I."]))


def test_each_response_has_its_own_marks() -> None:
    critic = babbler(Reader([scored((0.9, 0.0)), scored((0.0, 0.9), (0.9, 0.0))]), "labelled_spans")
    one, other = critic([Example("q: ")] * 2, ["So am I.", TEXT])
    assert one.spans == (Span(0, 8, "negative"),)
    assert other.spans == (Span(0, 8, "positive"), Span(9, 12, "negative"))


def test_what_the_marks_decide_cannot_be_asked_of_the_model() -> None:
    with pytest.raises(ConfigError, match=r"a probe chooses the labels; .* without a probe"):
        writer(Reader([]), form="tagged_words", learned="choices")
    with pytest.raises(ConfigError, match=r"the quotes are the marks of a probe\. Leave it out"):
        babbler(Reader([]), "spans", limits=QuoteLimits(quoted_in_feedback=True))
    babbler(Reader([]), "spans", constrain=False, limits=QuoteLimits(quoted_in_feedback=True))


@pytest.mark.parametrize(("said", "is_valid"), [(r"\"So\" is", True), (r"\"Lyon\" is", False), ("Lyon is", True)])
def test_quotes_in_the_feedback_are_still_those_of_the_response(said: str, is_valid: bool) -> None:
    critic = babbler(Reader([]), "labelled_spans", limits=QuoteLimits(verbatim=True, max_quotes=1))
    spans = (Span(0, 2, "negative"), Span(3, 8, "negative"))  # two, since max_quotes is about lists of the model
    labels = critic._labels("So am I.", spans)
    request = _Request([1], "So am I.", "", spans=spans)
    whole = f'{{"textual_feedback": "{said}.", "spans": [["So", "poor"], ["am I.", "poor"]], "outcome": null}}'
    critique = critic._constrained(request, 10**6, labels)
    assert accepts(critique, whole) == is_valid
    assert not accepts(critic._constrained(request, 10**6, labels), whole.replace("poor", "good"))
