"""What of a model's text is the answer, and what is reasoning, whatever the marks of the model."""

import time

import pytest

from text2grad.feedback import answer_parts, without_reasoning

TAGS = ("think", "thinking", "thought", "thoughts", "reasoning", "seed:think", "longcat_think", "antThinking")
MARKS = [
    *((f"<{tag}>", f"</{tag}>") for tag in TAGS),
    ("<Think >", "</ Think>"),
    ('<think time="3s">', "</think>"),
    ("<inner_monologue>", "</inner_monologue>"),
    ("<inner thoughts>", "</inner thoughts>"),
    ("<reasoning_content>", "</reasoning_content>"),
    ("<thinking-process>", "</thinking-process>"),
    ("<CoT>", "</CoT>"),
    ("&lt;think&gt;", "&lt;/think&gt;"),  # as HTML escapes them
    ("＜think＞", "＜／think＞"),  # as wide as Chinese characters
    ("＜ｔｈｉｎｋ＞", "＜/ｔｈｉｎｋ＞"),
    ("<｜think｜>", "<｜/think｜>"),
    ("[THINK]", "[/THINK]"),  # Magistral
    ("◁think▷", "◁/think▷"),  # Kimi-VL
    ("[unused16]", "[unused17]"),  # openPangu
    ("<unused94>thought\n", "<unused95>"),  # MedGemma
    ("<|begin_of_thought|>", "<|end_of_thought|>"),  # Sky-T1
    ("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    ("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ("<|channel>thought\n", "<channel|>"),  # Gemma 4
    ("<|start|>assistant to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"),  # Muse
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),  # gpt-oss
]


@pytest.mark.parametrize(("begin", "end"), MARKS)
def test_the_answer_is_what_stands_outside_of_the_marks(begin: str, end: str) -> None:
    """Marks as vLLM 0.22 lists them in its readers of reasoning (vllm-project/vllm, vllm/reasoning)."""
    assert without_reasoning(f"{begin}a draft{end}the answer") == "the answer"
    assert without_reasoning(f"\n{begin}a{end}\n{begin}b{end}the answer").strip() == "the answer"
    assert without_reasoning(f"Before. {begin}a draft{end}After.") == "Before. After."
    assert without_reasoning(f"a draft{end}the answer") == "the answer"  # the prompt opened it
    assert without_reasoning(f"{begin}a{end}b{end}the answer") == "the answer"  # closed twice
    assert without_reasoning(f"{begin}a draft that was cut") == ""
    assert without_reasoning("a draft that was cut", f"User: Why?\nAssistant: {begin}") == ""
    assert without_reasoning(f"{begin}a{end}b", f"<|assistant|>{begin}\n") == "b"  # the model opened it again
    begin = begin.replace("\n", " ")  # quotation marks close in their line
    for quoted in (f'"{begin}"', f"`{end}`", f"Write '{begin}x{end}' here", f'{{"a": "say {end} now"}}'):
        assert without_reasoning(quoted) == quoted


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("analysisWe add.assistantfinalthe answer", "the answer"),  # gpt-oss, its special tokens left out
        ("analysisWe add, and was cut", ""),
        ("analysis of the sum: 7", "analysis of the sum: 7"),
        ("Here is my thought process: a. Here is my response: b", " b"),  # Granite 3.2
        ("Here is my response: b", "Here is my response: b"),
        ("It has a <think>: it is never closed", "It has a <think>: it is never closed"),
        ("7\n<think>\nIs it 7? It was cut", "7\n"),
        ("I don't know</think> it's 8", " it's 8"),
        ('<think>He said "done".</think>"8"', '"8"'),
        ("x = re.sub(r'<think>.*?</think>', '', s)\n", "x = re.sub(r'<think>.*?</think>', '', s)\n"),
        ("<think>a</thinking>b", "b"),
        ("<think />8", "<think />8"),  # nothing was thought
        ('<details type="reasoning" done="true">\n> a\n</details>\nb', "\nb"),  # Open WebUI
        ("<details><summary>More</summary>a</details>b", "<details><summary>More</summary>a</details>b"),
        ('<details open="">a</details>b', '<details open="">a</details>b'),
        ("It ends with assistantfinal: 8", "It ends with assistantfinal: 8"),
        (":::thinking\na\n:::\nb", "\nb"),  # LibreChat
        (":::note\na\n:::\nb", ":::note\na\n:::\nb"),
        ("to=selfWe add.assistant to=userthe answer", "the answer"),  # Muse, its special tokens left out
        (" to=user<|message|>the answer", "the answer"),
        ("to=selfWe add, and was cut", ""),
        ("Ｗｈｙ？ ＜think＞a＜/think＞ 因为", "Ｗｈｙ？  因为"),
        ("  \n", ""),
    ],
)
def test_what_only_looks_like_a_mark_is_text(text: str, answer: str) -> None:
    assert without_reasoning(text) == answer
    assert "".join(text[start:end] for start, end in answer_parts(text)) == answer


SECTIONS = ("analysis", "Analysis", "plan", "planning", "reflection", "self_reflection", "rationale", "brainstorming")


@pytest.mark.parametrize("tag", SECTIONS)
def test_sections_that_may_be_what_was_asked_for_are_reasoning_only_before_an_answer(tag: str) -> None:
    section = f"<{tag}>\na ```draft```\n</{tag}>"
    assert without_reasoning(f"{section}\nthe answer").strip() == "the answer"
    assert without_reasoning(f"\n {section}<plan>b</plan>\n<answer>7</answer>").strip() == "<answer>7</answer>"
    assert without_reasoning(f"Sure.\n{section}\nthe answer") == "Sure.\nthe answer"
    assert without_reasoning(f"<think>a</think>\n{section}\nthe answer").strip() == "the answer"
    for whole in (
        f"{section}\n",
        f"Here it is:\n{section}",
        f"{section}<plan>b</plan>",  # two sections, and nothing else
        f"<report>\n{section}\n</report>",
        f"<{tag}> that was cut, or is never closed",
        f"the answer\n{section}",  # behind it
        f"A <{tag}> is meant. </{tag}> ends it.",  # words about it
        f"```xml\n{section}\n```\nThis is the file.",
        f"</{tag}> alone",
    ):
        assert without_reasoning(whole) == whole
    assert without_reasoning(f"<think>a {section}</think>{section}").strip() == section


def test_a_prompt_that_speaks_of_a_mark_opens_nothing() -> None:
    assert without_reasoning("8", "Put your reasoning into <think>") == "8"
    assert without_reasoning("8", "<think>5?</think>\nAnswer:") == "8"


@pytest.mark.parametrize(
    "mark",
    [
        "<think>",
        "</think>",
        "x <think>",
        '"</think>',
        "<think>a</think>",
        "< ",
        "<a_",
        "'",
        "<plan>",
        "\n<plan>a</plan>",
    ],
)
def test_marks_without_end_are_read_in_seconds(mark: str) -> None:
    start = time.process_time()
    without_reasoning(mark * (100_000 // len(mark)))
    assert time.process_time() - start < 5.0  # 0.4 s at worst when this was written
