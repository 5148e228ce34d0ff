"""What is learned of a chat is what the model's template renders: over every template that TRL ships, and by hand.

The templates are the files of trl/chat_templates (TRL 1.16.0). Each gets a byte-level tokenizer that knows its tokens.
"""

import json
import re
from contextlib import suppress
from datetime import date
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from text2grad.errors import DataError
from text2grad.feedback.examples import read_demonstrations
from text2grad.models import chat_template
from text2grad.models.chat_template import LostToolsError, turn_end
from text2grad.models.fine_tuning import NO_LOSS, Row, conversation_rows, with_end
from text2grad.models.prompts import encode_prompts, stop_ids
from text2grad.types import Example

TEMPLATES = {
    path.stem: path.read_text("utf-8") for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja")
}
TOKEN = r'<\|[^|<>\s]+\|?>|<[a-z_]+\|>|<｜[^｜]+｜>|<\|"\|>|</?think>|<(?:start|end)_of_\w+>|\[/?INST\]'
ENDS = {  # how a turn ends, and one that calls a tool; from the models' cards
    "cohere": ("<|END_OF_TURN_TOKEN|>",),
    "cohere2": ("<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",),
    "deepseek": ("<｜end▁of▁sentence｜>",),
    "diffusion_gemma": ("<turn|>", "<|tool_response>"),
    "gemma": ("<end_of_turn>",),
    "gemma4": ("<turn|>", "<|tool_response>"),
    "gemma4_v2": ("<turn|>",),
    "glm4moe": ("<|user|>", "<|observation|>"),  # slime#514: the next turn's token ends an answer
    "gptoss": ("<|return|>", "<|call|>"),
    "idefics3": ("<end_of_utterance>",),
    "lfm2": ("<|im_end|>",),
    "llama3": ("<|eot_id|>",),
    "llava": ("</s>",),
    "muse": ("<|eot|>",),
    "nemotron": ("<|im_end|>",),
    "phi3": ("<|end|>",),
    "qwen": ("<|im_end|>",),
    "smolvlm": ("<end_of_utterance>",),
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "look", "arguments": {"place": "Rome", "days": 3}}}
AS_TEXT = {**CALL, "function": {"name": "look", "arguments": '{"place": "Rome", "days": 3}'}}
PARAMETERS = {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}]


def asked(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


CHATS = {
    "answers": [asked("Who?"), said("Ann went"), asked("When?"), said("Friday noon")],
    "thoughts": [
        asked("Who?"),
        said("Ann went", reasoning_content="Maybe Bob"),
        asked("When?"),
        said("Friday noon", reasoning_content="Soon enough"),
    ],
    "calls": [
        asked("Weather?"),
        said("Let me see", tool_calls=[CALL]),
        {"role": "tool", "name": "look", "content": "sunny"},
        said("Warm"),
    ],
    "calls alone": [
        asked("Weather?"),
        said("", tool_calls=[CALL]),
        {"role": "tool", "name": "look", "content": "sunny"},
        said("Warm"),
    ],
}
OPENAI = {**AS_TEXT, "id": "call_9zX1"}
BARE = {"name": "look", "arguments": {"place": "Rome", "days": 3}}
SPELLINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [  # a call and its result, as the last of the chats has them
    (said(None, tool_calls=[OPENAI]), {"role": "tool", "content": "sunny", "tool_call_id": "call_9zX1"}),
    (said("", tool_calls=[{"function": BARE}]), {"role": "tool", "content": "sunny"}),  # no type, no ids, no name
    (said(None, tool_calls=[BARE]), {"role": "tool", "name": "look", "content": "sunny"}),
    (said(None, tool_calls=json.dumps([OPENAI])), {"role": "tool", "name": "look", "content": "sunny"}),
    (said(None, function_call=AS_TEXT["function"]), {"role": "function", "name": "look", "content": "sunny"}),
    (
        said("", tool_calls=[CALL], function_call=None),
        {"role": "tool", "name": "look", "content": "sunny"} | {"tool_calls": []},
    ),
]


def family(name: str) -> tuple[str, ...]:
    return ENDS[max((stem for stem in ENDS if name.startswith(stem)), key=len)]


def tokenizer_for(template: Any, *special: str, eos: str = "<eos>") -> Any:
    """Return a byte-level tokenizer that has a template and knows its tokens."""
    tokens = dict.fromkeys([*re.findall(TOKEN, str(template)), *special, eos, "<bos>"])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate([*tokens, *alphabet])}, merges=[]))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, bos_token="<bos>")
    tokenizer.add_special_tokens({"additional_special_tokens": [token for token in tokens if token != eos]})
    tokenizer.chat_template = template
    return tokenizer


def of_trl(name: str) -> Any:
    return tokenizer_for(TEMPLATES[name], eos="</s>" if name.startswith("llava") else "<eos>")


def turns_of(chat: list[dict[str, Any]], **record: Any) -> list[tuple[Any, ...]]:
    answers = [row for row, message in enumerate(chat) if message["role"] == "assistant"]
    return [(chat[:row], chat[row]["content"] or "", chat[row], record) for row in answers]


def learned(tokenizer: Any, rows: list[Row]) -> list[str]:
    """Return the text of each run of learned tokens."""
    runs: list[list[int]] = []
    for row in rows:
        for place, (token, label) in enumerate(zip(row["input_ids"], row["labels"], strict=True)):
            assert label in (token, NO_LOSS)
            if label != NO_LOSS:
                runs += [] if place and row["labels"][place - 1] != NO_LOSS else [[]]
                runs[-1].append(token)
    return [tokenizer.decode(run) for run in runs]


def rendered(tokenizer: Any, chat: list[dict[str, Any]], **how: Any) -> str:
    """Return a chat as transformers renders it, in the form that the template takes."""
    tools = TOOLS if any(message.get("tool_calls") for message in chat) else None
    as_texts = [{**message, "tool_calls": [AS_TEXT]} if "tool_calls" in message else message for message in chat]
    as_parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]
    for form in (chat, as_texts, as_parts):
        with suppress(Exception):
            text = str(tokenizer.apply_chat_template(form, tokenize=False, tools=tools, **how))
            if chat[0]["content"] in text:
                return text
    return ""


def words(*messages: dict[str, Any]) -> set[str]:
    return set(re.findall(r"\w+", " ".join(f"{m['content']} {m.get('reasoning_content', '')}" for m in messages)))


def check(name: str, kind: str) -> dict[str, Any]:
    """Learn a chat by a template, hold every answer against the template's own text, and say what happened.

    The text of an answer stands at the end of the rendered chat up to it; behind it there are only blanks and an end
    of the text. It holds nothing that others say, and begins behind the template's header.
    """
    tokenizer, chat, lost = of_trl(name), CHATS[kind], set[str]()
    record = {"tools": TOOLS} if kind.startswith("calls") else {}
    rows = conversation_rows(tokenizer, turns_of(chat, **record), "chat", lost=lost)
    if lost == {"tool_calls"}:  # without what the tool said, the last answer is to nothing
        assert not rows
        for prompt in (chat[:3], chat):
            with pytest.raises(DataError, match=r"refuses example 0 .*: it has no place for a call"):
                encode_prompts(tokenizer, [Example([*prompt, asked("So?")], meta=record)])
        return {"lost": ["tool_calls"], "rows": 0}
    texts, answers = learned(tokenizer, rows), [row for row, m in enumerate(chat) if m["role"] == "assistant"]
    assert len(texts) == len(answers) == 2
    if record:
        check_spellings(name, texts if kind == "calls alone" else [], lost)
        prompt = tokenizer.decode(encode_prompts(tokenizer, [Example(chat[:3], meta=record)])[0])
        assert {"look", "Rome", "3", "sunny"} <= words(said(prompt))
        assert prompt == rendered(tokenizer, chat[:3], add_generation_prompt=True)
    for text, row in zip(texts, answers, strict=True):
        whole, ends = rendered(tokenizer, chat[: row + 1]), family(name)
        is_call = bool(chat[row].get("tool_calls"))
        end = ends[-1] if is_call else ends[0]
        assert text.endswith(end)
        rest = whole.rpartition(text if text in whole else text.removesuffix(end))[2]  # GLM's end is the next turn's
        assert rest.replace("<eos>", "").strip() == ""
        assert whole.removesuffix(rest).endswith(text if text in whole else text.removesuffix(end))
        if "content" not in lost:
            assert words({**chat[row], "reasoning_content": ""}) <= words(said(text))
        assert not words(*chat[:row], *chat[row + 1 :]) - words(chat[row]) & words(said(text))
        if kind == "thoughts" and "reasoning_content" not in lost:
            assert words(said(chat[row]["reasoning_content"])) <= words(said(text))
        if is_call:
            assert {"look", "Rome", "3"} <= words(said(text))
        assert not re.match(
            r"(\||<\|im_start\|>|<start_of_turn>|<\|start_header_id\|>|<\|start\|>|assistant|model)", text
        )
    return {"rows": len(rows), "lost": sorted(lost)}


def check_spellings(name: str, expected: list[str], known: set[str]) -> None:
    """Learn the same of a call and a result, however they are spelled; the tools, too."""
    records: list[dict[str, Any]] = [{"tools": TOOLS}, {"functions": [tool["function"] for tool in TOOLS]}] * 3
    tokenizer = of_trl(name)
    for (call, result), record in zip(SPELLINGS if expected else (), records, strict=False):
        chat, lost = [asked("Weather?"), call, result, said("Warm")], set[str]()
        rows = conversation_rows(tokenizer, turns_of(chat, **record), "chat", lost=lost)
        assert learned(tokenizer, rows) == expected
        assert lost == known


def tools_in(name: str) -> str:
    return "some" if "tool_calls" in TEMPLATES[name] else "none"


SAMPLE = (
    "cohere2 deepseekv3 gemma3 gemma4_v3 glm4moe gptoss idefics3 llama3_1 nemotron_3_nano phi3_5 qwen3 qwen3_5_think"
)


@pytest.mark.parametrize("name", SAMPLE.split())
def test_what_is_learned_is_the_templates_text_of_the_answers(name: str) -> None:
    for kind in CHATS:
        check(name, kind)


@pytest.mark.slow
def test_the_matrix_of_all_templates() -> None:
    header = (
        "| template | end of a turn | rows: answers, thoughts, calls, calls alone | not rendered | calls of tools |"
    )
    rows, without = [], dict[str, list[str]]()
    for name in sorted(TEMPLATES):
        outcome = {kind: check(name, kind) for kind in CHATS}
        counts = ", ".join(str(one["rows"] or "–") for one in outcome.values())
        lost = ", ".join(sorted({field for one in outcome.values() for field in one["lost"]} - {"tool_calls"})) or "–"
        calls = "–"
        if not all(one["rows"] for one in outcome.values()):
            calls = "no tools in it" if tools_in(name) == "none" else "left out, but where the content is null"
            without.setdefault(calls, []).append(name)
        cells = (name, " or ".join(f"`{end}`" for end in family(name)), counts, lost, calls)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    versions = ", ".join(f"{package} {version(package)}" for package in ("trl", "transformers", "jinja2"))
    lines = [
        f"Run of {date.today()}; {versions}.",
        "",
        f"{len(rows)} chat templates of TRL. The learned text of every assistant message is the template's text of it, "
        "and no template refuses a chat. 24 have no tools in them: their chats with calls and results of tools are "
        "left out and counted, and such prompts are refused. So are they in two more, which render calls only where a "
        "content is null, and transformers gives templates no null. The others learn the same of a call and its "
        "result in six spellings: with arguments as an object or a text, content null or empty, ids and names or none, "
        "calls bare or as text, and OpenAI's older function_call.",
        "",
        header,
        "|---|---|---|---|---|",
        *rows,
    ]
    file = Path(__file__).parents[1] / "matrices" / "chat_templates.md"
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n", "utf-8")
    assert len(rows) == 72
    stems = {calls: {re.sub(r"_training", "", name) for name in names} for calls, names in without.items()}
    assert stems == {
        "no tools in it": {*NO_TOOLS_IN.split()},
        "left out, but where the content is null": {"deepseek_r1_distill"},
    }
    assert len(without["no tools in it"]) == 24


NO_TOOLS_IN = "cohere cohere2 gemma gemma3 idefics3 lfm2 llama3 llava_next phi3 phi3_5 qwen2_5_vl smolvlm"

# By hand.

CHATML = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content | trim }}
{%- for c in m.tool_calls or [] %}<call>{{ c.function.name }}{{ c.function.arguments | tojson }}</call>
{%- endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
HEADER = "<|im_start|>assistant\n"


def chat_rows(template: Any, chat: list[dict[str, Any]], tmp_path: Path, **record: Any) -> tuple[Any, list[Row]]:
    """Return the rows of a chat that is read from a file."""
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": chat, **record}), "utf-8")
    tokenizer = tokenizer_for(template)
    (one,) = read_demonstrations([tmp_path / "chat.jsonl"])
    return tokenizer, conversation_rows(tokenizer, one.turns, "chat")


CALLED = '<call>look{"place": "Rome", "days": 3}</call><|im_end|>'


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([said("I look.", tool_calls=[CALL])], ["I look." + CALLED]),  # slime#1114
        ([said(None, tool_calls=[CALL])], [CALLED]),  # trl#2429
        ([said("", tool_calls=[AS_TEXT])], [CALLED]),  # arguments as OpenAI's servers write them; vLLM reads them, too
        ([said("36", reasoning_content="12+24")], ["<think>12+24</think>36<|im_end|>"]),  # Automodel#2348
        ([said("36", reasoning="12+24")], ["<think>12+24</think>36<|im_end|>"]),
        ([said("36", thinking="12+24")], ["<think>12+24</think>36<|im_end|>"]),
        ([said(" 36\n")], ["36<|im_end|>"]),  # as the template trims it
        ([said("35", weight=0), asked("No."), said("36", weight=1)], ["36<|im_end|>"]),  # axolotl#1703, OpenAI
        ([said("35", train=False), asked("No."), said("36")], ["36<|im_end|>"]),  # axolotl
        ([said("35", train_on_turn=False), asked("No."), said("36", trainer="Ann")], ["36<|im_end|>"]),
        ([said("35", loss=0), asked("No."), said("36", loss=1.0)], ["36<|im_end|>"]),  # slime#377, ms-swift
        ([said("36", weight=None), asked("No."), said("35")], ["36<|im_end|>", "35<|im_end|>"]),
        ([said("One."), said("Two.")], ["One.<|im_end|>", "Two.<|im_end|>"]),  # the second does not continue the first
        ([said("a <|im_end|> b")], ["a <|im_end|> b<|im_end|>"]),
    ],
)
def test_the_answers_of_a_chat_are_learned_as_rendered_in_one_row(
    messages: list[dict[str, Any]], expected: list[str], tmp_path: Path
) -> None:
    chat = [asked("12 times 3?"), *messages]
    tokenizer, rows = chat_rows(CHATML, chat, tmp_path)
    assert learned(tokenizer, rows) == expected
    (row,) = rows
    # Behind the last learned answer, a whole row is the rendered chat: each begun by the header of a prompt.
    form = [{**m, "tool_calls": [CALL]} if m.get("tool_calls") else m for m in chat]
    assert tokenizer.decode(row["input_ids"]) + "\n" == tokenizer.apply_chat_template(form, tokenize=False)
    assert row["input_ids"].count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == len(chat)  # a spelled one is text


def test_the_turns_end_is_the_templates_and_not_the_tokenizers(tmp_path: Path) -> None:
    tokenizer, rows = chat_rows(CHATML, [asked("Who?"), said("Ann"), asked("When?"), said("Friday")], tmp_path)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert learned(tokenizer, rows) == ["Ann<|im_end|>", "Friday<|im_end|>"]
    assert tokenizer.eos_token_id not in rows[0]["input_ids"]
    (row,) = conversation_rows(tokenizer, [("Who?", "Ann")], "chat")  # a row of prompt and reference, too
    assert learned(tokenizer, [row]) == ["Ann<|im_end|>"]
    (row,) = conversation_rows(tokenizer, [("Who?", "Ann")], "plain")
    assert learned(tokenizer, [row]) == ["Ann<eos>"]
    assert (with_end(tokenizer, [], "chat"), with_end(tokenizer, [])) == ([end], [tokenizer.eos_token_id])


def test_generation_stops_where_the_template_ends_a_turn() -> None:
    """A base model with a chat template, as Qwen2.5-0.5B: its own end is that of a text."""
    tokenizer = tokenizer_for(CHATML)
    end, eos = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<eos>"])
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=None),
        config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=len(tokenizer))),
    )
    assert stop_ids(model, tokenizer) == stop_ids(model, tokenizer, prompt_format="chat") == (eos, end)
    assert stop_ids(model, tokenizer, prompt_format="plain") == (eos,)
    assert stop_ids(model, tokenizer, [7]) == (7,)
    tokenizer.chat_template = CHATML.replace("<|im_end|>", "")  # without an end, and its next turn has one token
    assert stop_ids(model, tokenizer) == (eos, tokenizer.convert_tokens_to_ids("<|im_start|>"))
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    assert stop_ids(model, tokenizer) == (eos,)
    tokenizer.chat_template = CHATML.replace(
        "<|im_end|>", "<|im_end|>{{ '<bos>' if loop.last }}"
    )  # ends the chat alone
    assert stop_ids(model, tokenizer) == (eos, end)
    tokenizer.chat_template = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML
    assert stop_ids(model, tokenizer) == (eos, end)


def test_an_answer_that_would_share_a_token_with_its_prompt_keeps_the_prompt_of_rollouts() -> None:
    """Two line breaks are one token: the header's, and the one that the answer begins with."""
    tokenizer = tokenizer_for(CHATML.replace(" | trim", ""))
    tokenizer.backend_tokenizer.model = models.BPE(
        vocab={**{k: v for k, v in tokenizer.get_vocab().items()}, "\u010a\u010a": len(tokenizer)},
        merges=[("\u010a", "\u010a")],
    )
    assert len(tokenizer("\n\n").input_ids) == 1
    (ids,) = encode_prompts(tokenizer, [Example("Who?")])
    (row,) = conversation_rows(tokenizer, [("Who?", "\n\nAnn")], "chat")
    assert tuple(row["input_ids"][: len(ids)]) == ids
    assert learned(tokenizer, [row]) == ["\n\nAnn<|im_end|>"]


def test_a_prompt_that_ends_with_a_begun_answer_is_continued() -> None:
    """As TRL does (trl#3299, transformers#33198), in rollouts and in fine-tuning."""
    tokenizer = tokenizer_for(CHATML)
    begun = [asked("Who?"), said("It was")]
    (ids,) = encode_prompts(tokenizer, [Example(begun)])
    assert tokenizer.decode(ids) == "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\nIt was"
    (row,) = conversation_rows(tokenizer, [(begun, " Ann.")], "chat")
    assert row["input_ids"][: len(ids)] == list(ids)
    assert learned(tokenizer, [row]) == [" Ann.<|im_end|>"]
    (ids,) = encode_prompts(tokenizer, [Example([asked("Who?"), said("It was.", prefix=False)])])
    assert tokenizer.decode(ids).endswith("It was.<|im_end|>\n" + HEADER)
    with pytest.raises(DataError, match="the prompt of example 0 ends with a call of a tool; add the tool's answer"):
        encode_prompts(tokenizer, [Example([asked("Who?"), said("", tool_calls=[CALL])])])


def test_parts_of_a_prompt_reach_a_template_of_parts_as_they_are() -> None:
    tokenizer, parts = of_trl("qwen2_5_vl"), [{"type": "text", "text": "Who?"}]
    assert encode_prompts(tokenizer, [Example([asked(parts)])]) == encode_prompts(tokenizer, [Example("Who?")])  # type: ignore[arg-type]
    of_parts = of_trl("idefics3")  # takes parts alone
    assert "Who?" in of_parts.decode(encode_prompts(of_parts, [Example("Who?")])[0])


@pytest.mark.parametrize("tools", [TOOLS, json.dumps(TOOLS)], ids=["list", "text"])
def test_the_tools_of_a_record_are_rendered_in_prompts(tools: Any, tmp_path: Path) -> None:
    tokenizer = tokenizer_for("{% if tools %}{{ tools[0].function.name }}: {% endif %}" + CHATML)
    (ids,) = encode_prompts(tokenizer, [Example("Weather?", meta={"tools": tools})])
    assert tokenizer.decode(ids) == "look: <|im_start|>user\nWeather?<|im_end|>\n" + HEADER
    _, (row,) = chat_rows(tokenizer.chat_template, [asked("Weather?"), said("Sun")], tmp_path, tools=tools)
    assert tuple(row["input_ids"][: len(ids)]) == ids
    (ids,) = encode_prompts(tokenizer, [Example("Weather?", meta={"tools": "a hammer"})])  # no tools of a model
    assert tokenizer.decode(ids) == "<|im_start|>user\nWeather?<|im_end|>\n" + HEADER


@pytest.mark.parametrize("own", [{"enable_thinking": False}, '{"enable_thinking": false}'], ids=["object", "text"])
def test_the_arguments_of_a_record_for_its_template_are_given_to_it(own: Any, tmp_path: Path) -> None:
    """As in TRL: "chat_template_kwargs" of a row; in Qwen3, thoughts that are off are closed in the prompt."""
    chat = [asked("Who?"), said("Ann")]
    tokenizer, (row,) = chat_rows(TEMPLATES["qwen3"], chat, tmp_path, chat_template_kwargs=own)
    assert learned(tokenizer, [row]) == ["Ann<|im_end|>"]
    (ids,) = encode_prompts(tokenizer, [Example("Who?", meta={"chat_template_kwargs": own})])
    assert tokenizer.decode(ids).endswith(HEADER + "<think>\n\n</think>\n\n")
    assert row["input_ids"][: len(ids)] == list(ids)
    shown = tokenizer_for("{% for it in documents %}{{ it.text }}{% endfor %}" + CHATML)
    (ids,) = encode_prompts(shown, [Example("Who?", meta={"chat_template_kwargs": {"documents": [{"text": "Ann."}]}})])
    assert shown.decode(ids).startswith("Ann.<|im_start|>user")
    for taken in ("chat_template", "tokenize", "tools", "continue_final_message"):
        with pytest.raises(DataError, match=f"\"chat_template_kwargs\" of the chat: '{taken}' is no variable of"):
            chat_rows(TEMPLATES["qwen3"], chat, tmp_path, chat_template_kwargs={taken: "x"})


def test_of_named_templates_that_for_tools_renders_and_ends_the_turns_of_chats_with_tools(tmp_path: Path) -> None:
    """As in Command R and Hermes 2 Pro, whose tokenizers have several templates by name."""
    of_tools = "{{ tools[0].function.name }}: " + CHATML.replace("<|im_end|>\n", "<|eot|>")
    named: Any = {"default": CHATML, "tool_use": of_tools}
    chat = [asked("Who?"), said("Ann"), asked("When?"), said("Friday")]
    tokenizer, rows = chat_rows(named, chat, tmp_path)
    assert learned(tokenizer, rows) == ["Ann<|im_end|>", "Friday<|im_end|>"]
    tokenizer, (row,) = chat_rows(named, chat, tmp_path, tools=TOOLS)
    assert learned(tokenizer, [row]) == ["Ann<|eot|>", "Friday<|eot|>"]
    assert tokenizer.decode(row["input_ids"]) == tokenizer.apply_chat_template(chat, tools=TOOLS, tokenize=False)
    tokenizer, rows = chat_rows({"tool_use": of_tools}, chat, tmp_path, tools=TOOLS)
    assert learned(tokenizer, rows) == ["Ann<|eot|>", "Friday<|eot|>"]
    with pytest.raises(DataError, match="multiple chat templates with no default"):
        chat_rows({"tool_use": of_tools}, chat, tmp_path)


def test_functions_that_no_template_renders_are_told() -> None:
    lost = set[str]()
    turn = ([asked("Weather?")], "Sun", said("Sun"), {"functions": [TOOLS[0]["function"]]})  # OpenAI's before "tools"
    conversation_rows(tokenizer_for(CHATML), [turn], "chat", lost=lost)
    assert lost == {"tools"}


def test_marks_of_the_template_are_tokens_and_those_that_a_message_spells_are_text(tmp_path: Path) -> None:
    """gpt-oss: the thought, its channel and its end are one answer; the answer spells the token of a new turn."""
    chat = [asked("Who?"), said("Ann <|start|>user", thinking="Maybe Bob")]
    tokenizer, rows = chat_rows(TEMPLATES["gptoss"], chat, tmp_path)
    assert learned(tokenizer, rows) == [
        "<|channel|>analysis<|message|>Maybe Bob<|end|><|start|>assistant<|channel|>final<|message|>"
        "Ann <|start|>user<|return|>"
    ]
    tokens = [label for label in rows[0]["labels"] if NO_LOSS < label < tokenizer.convert_tokens_to_ids("!")]
    assert "".join(tokenizer.convert_ids_to_tokens(tokens)) == (
        "<|channel|><|message|><|end|><|start|><|channel|><|message|><|return|>"
    )


def test_a_template_that_renders_nothing_of_an_answer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing is left of an assistant message in prompts of format 'chat'"):
        chat_rows(
            CHATML.replace("m.content | trim", "m.content | replace('I', '')"), [asked("Who?"), said("I")], tmp_path
        )


RESULT = {"role": "tool", "content": "sun"}


def test_calls_and_results_that_a_template_leaves_out_are_refused_with_their_row_or_counted(tmp_path: Path) -> None:
    chat = [asked("Weather?"), said("I look.", tool_calls=[CALL]), RESULT, said("Sunny.", weight=1)]
    no_calls = CHATML.replace("m.tool_calls or []", "[]")
    no_results = CHATML.replace("%}<|im_start|>", "%}{% if m.role == 'tool' %}{% continue %}{% endif %}<|im_start|>", 1)
    first_call = CHATML.replace("m.tool_calls or []", "(m.tool_calls or [])[:1]")
    two = [asked("Weather?"), said("", tool_calls=[CALL, {**CALL, "id": "2"}]), RESULT, RESULT, said("Sunny.")]
    for template, messages, why in [
        (no_calls, chat, "has no place for a call"),
        (
            no_calls,
            [chat[0], {**chat[1], "weight": 0}, *chat[2:]],
            "has no place for a call",
        ),  # not learned, but missed
        (no_results, chat, "has no place for a call of a tool, or a result"),
        (
            no_calls,
            [chat[0], said("I look.", tool_calls=[{"function": {"name": "look"}}]), asked("So?"), chat[3]],
            "has",
        ),
        (first_call, two, "has no place for a call"),  # as in gpt-oss
    ]:
        with pytest.raises(LostToolsError, match=f"it {why}.* Change its messages, or take another model"):
            chat_rows(template, messages, tmp_path)
        with pytest.raises(LostToolsError, match=f"refuses example 1 .*: it {why}"):
            encode_prompts(tokenizer_for(template), [Example("Hi"), Example(messages[:-1])])
        lost = set[str]()
        assert not conversation_rows(tokenizer_for(template), turns_of(messages), "chat", lost=lost)
        assert lost == {"tool_calls"}
    assert len(conversation_rows(tokenizer_for(CHATML), turns_of(two), "chat")) == 1
    with pytest.raises(
        LostToolsError, match="example 1 calls a tool, which plain text has no place for; take a chat model"
    ):
        encode_prompts(tokenizer_for(CHATML), [Example("Hi"), Example(chat[:3])], prompt_format="plain")
    with pytest.raises(
        LostToolsError, match=r"single tool-calls at once!\. Change its messages, or take another model"
    ):
        conversation_rows(of_trl("llama3_1"), turns_of(two), "chat")


def test_what_calls_and_results_lack_is_added_where_a_template_asks_for_it(tmp_path: Path) -> None:
    """As Mistral's: ids of nine characters on both; the result of the second call stands first."""
    asking = """{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id is undefined or c.id|length != 9 %}
    {{ raise_exception("ids have nine characters") }}{% endif %}{% endfor %}{% if m.role == "tool" %}<|im_start|>{{
    m.tool_call_id + " " + m.name }}{% endif %}{% endfor %}""" + CHATML.replace(
        "c.function.name", "c.id + c.function.name"
    )
    calls = [{"id": f"call_{name}", "function": {"name": name, "arguments": ""}} for name in ("look", "count")]
    results = [{**RESULT, "tool_call_id": "call_count"}, {**RESULT, "tool_call_id": "call_look"}]
    chat = [asked("Weather?"), said("", tool_calls=calls), *results, said("Sunny.")]
    tokenizer, rows = chat_rows(asking, chat, tmp_path)
    text = tokenizer.decode(rows[-1]["input_ids"])
    assert re.findall(r"<\|im_start\|>(\d+ \w+)", text) == ["000000001 count", "000000000 look"]
    assert re.findall(r"<call>[^<]+", text) == ["<call>000000000look{}", "<call>000000001count{}"]
    for result in results:
        del result["tool_call_id"]  # then they are in order
    (ids,) = encode_prompts(tokenizer, [Example(chat[:4])])
    assert re.findall(r"<\|im_start\|>(\d+ \w+)", tokenizer.decode(ids)) == ["000000000 look", "000000001 count"]
    chat[1] = said("", tool_calls=[{**call, "id": f"abcdefgh{row}"} for row, call in enumerate(calls)])
    chat[2:4] = [{**RESULT, "tool_call_id": "abcdefgh1", "name": "count"}]
    (ids,) = encode_prompts(tokenizer, [Example(chat[:3])])
    assert "abcdefgh1 count" in tokenizer.decode(ids)  # as they are, where they fit


@pytest.mark.parametrize("name", ["qwen3", "nemotron_3_nano"], ids=["JSON", "XML"])
def test_arguments_of_several_lines_are_learned_whole_as_an_object_or_a_text(name: str) -> None:
    learned_of, tokenizer = [], of_trl(name)
    for arguments in ({"place": "Rome\nOslo"}, '{"place": "Rome\\nOslo"}'):
        lost, call = set[str](), {**CALL, "function": {"name": "look", "arguments": arguments}}
        chat = [asked("Weather?"), said("", tool_calls=[call]), RESULT, said("Sunny.")]
        learned_of.append(
            learned(tokenizer, conversation_rows(tokenizer, turns_of(chat, tools=TOOLS), "chat", lost=lost))
        )
        assert not lost
    assert learned_of[0] == learned_of[1]


def test_fields_of_other_servers_are_told_too() -> None:
    """OpenRouter's and LiteLLM's thoughts, and OpenAI's refusals, which no template renders."""
    said_so = {
        "refusal": "Never",
        "reasoning_details": [{"type": "reasoning.text", "text": "Maybe"}],
        "thinking_blocks": [{"type": "thinking", "thinking": "Perhaps"}],
    }
    lost = set[str]()
    conversation_rows(tokenizer_for(CHATML), [([asked("Who?")], "Ann", said("Ann", **said_so), {})], "chat", lost=lost)
    assert lost == said_so.keys()


def test_the_end_of_a_turn_is_asked_once_and_anew_of_another_template(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked_for = tokenizer_for(TEMPLATES["gemma"], "<start_of_turn>", "<end_of_turn>", "<|im_end|>"), list[str]()
    render = chat_template.render

    def counted(tokenizer: Any, *given: Any, **how: Any) -> str:
        asked_for.append(tokenizer.chat_template)
        return render(tokenizer, *given, **how)

    monkeypatch.setattr(chat_template, "render", counted)
    assert [turn_end(made).text for _ in range(3)] == ["<end_of_turn>"] * 3
    made.chat_template = "{% for m in messages %}{{ m['role'] + m['content'] }}<|im_end|>{% endfor %}"
    assert [turn_end(made).text for _ in range(3)] == ["<|im_end|>"] * 3
    assert len(asked_for) == 4  # a chat that ends with the answer, and one that goes on, of each template


def test_a_tokenizer_that_does_not_tell_its_added_tokens_has_none() -> None:
    class Silent:  # as mistral-common's
        def __len__(self) -> int:
            return 3

    assert re.search(chat_template.any_of(Silent()), "<eos>") is None
