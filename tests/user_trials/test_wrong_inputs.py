"""What users get wrong: each command ends with the documented exit code and a clear message, and nothing is lost.

Every trial runs in this process, in a copy of a folder with models, data and finished runs (tests/helpers/trial_world.py).
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from trial_world import Trial, check, make_world

pytestmark = pytest.mark.filterwarnings("default")

PROMPT = '{"prompt": "red one"}\n'
RESPONSE = '{"prompt": "one", "response": "red cat"}\n'
ANNOTATION = (
    '{"prompt": "a:", "response": " cat one", "critique": {"feedback": "Animals please.", "status": "ok", '
    '"spans": [{"start": 1, "end": 4, "label": "positive"}], "unmatched": [], "raw": "", "outcome": 0.0}}\n'
)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trials") / "world"
    make_world(directory)
    return directory


def setting(name: str, value: str, says: str, *, code: int = 2, writes: bool = False) -> Trial:
    """Return a trial of one value of one setting."""
    return Trial(f"{name}={value}", f"train my.toml --set {name}={value}", (says,), code, writes=writes)


def critic(name: str, module: str, *says: str, code: int = 2, writes: bool = False, steps: int = 2) -> Trial:
    """Return a trial of a user's critic."""
    command = f"train my.toml --critic mine:critic --set run.steps={steps}"
    return Trial(name, command, says, code, files={"mine.py": module}, writes=writes)


def prompts(name: str, text: str | bytes, *says: str, code: int = 2, more: str = "", writes: bool = False) -> Trial:
    """Return a trial of a file of prompts."""
    return Trial(name, f"train my.toml {more}", says, code, files={"prompts.jsonl": text}, writes=writes)


def edited(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return the preparation that changes a file."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def removed(name: str) -> Callable[[Path], object]:
    """Return the preparation that removes a file."""
    return lambda folder: (folder / name).unlink()


def in_newest_checkpoint(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Return the preparation that changes a file of the last checkpoint of runs/done."""

    def prepare(folder: Path) -> None:
        path = sorted((folder / "runs" / "done" / "checkpoints").glob("step-*"))[-1] / name
        path.write_bytes(change(path.read_bytes()))

    return prepare


def unresized_token(folder: Path) -> None:
    """Add a padding token to the policy's tokenizer, for which the model has no row."""
    from text2grad.models import load_tokenizer

    tokenizer = load_tokenizer(str(folder / "policy"))
    tokenizer.add_special_tokens({"pad_token": "<|beyond|>"})
    tokenizer.save_pretrained(folder / "policy")


def no_padding_token(folder: Path) -> None:
    """Take the padding token from the policy."""
    for name, key in (("tokenizer_config.json", "pad_token"), ("config.json", "pad_token_id")):
        path = folder / "policy" / name
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text("utf-8")).items() if k != key}), "utf-8")


def only_pickled_weights(folder: Path) -> None:
    """Replace the policy's safetensors by a file of pickled weights."""
    (folder / "policy" / "model.safetensors").rename(folder / "policy" / "pytorch_model.bin")


def another_rate(folder: Path) -> None:
    """Make a second finished run, of another learning rate."""
    shutil.copytree(folder / "runs/done", folder / "runs/again")
    path = folder / "runs/again/run.json"
    path.write_text(path.read_text("utf-8").replace('"lr": 1e-06', '"lr": 1e-05', 1), "utf-8")


def half(data: bytes) -> bytes:
    """Cut a file in the middle, as a full disk does."""
    return data[: len(data) // 2]


def garbage(data: bytes) -> bytes:
    """Return bytes that are no file of any kind."""
    return b"\x00\xff garbage"


DONE = "train my.toml --out runs/done"

RECIPES = [
    Trial("no recipe", "train missing.toml", (r"cannot read missing\.toml: No such file",)),
    Trial("recipe is a folder", "train policy", ("cannot read policy: Is a directory",)),
    Trial("broken TOML", "train bad.toml", (r"bad\.toml is no recipe: ",), files={"bad.toml": "[run]\nsteps ="}),
    Trial("recipe in Latin-1", "train bad.toml", (r"bad\.toml:1: not UTF-8",), files={"bad.toml": b"# caf\xe9\n"}),
    Trial("unknown section", "train bad.toml", ('no section "modle". Did you mean "model"?',), files={"bad.toml": "[modle]\n"}),
    Trial("unknown key", "train my.toml --set run.stepps=3", ('no key "stepps". Did you mean "steps"?',)),
    Trial("unknown key of another section", "train my.toml --set ppo.lr=1", (r"\[ppo\] has no key \"lr\"",)),
    Trial("section is a number", "train bad.toml", (r"\[run\] is a section of settings, got 3",), files={"bad.toml": "run = 3\n"}),
    Trial("override without value", "train my.toml --set run.steps", (r'"section\.key=value", got .run\.steps.',)),
    Trial("override without section", "train my.toml --set steps=3", (r'"section\.key=value", got .steps=3.',)),
    Trial("no recipe given", "train", ("the following arguments are required: recipe",)),
    Trial("unknown option", "train my.toml --fast", ("unrecognized arguments: --fast",)),
    Trial("unknown command", "trian my.toml", ("did you mean `train`",)),
    Trial("no command", "", ("required: command",)),
    setting("run.steps", "0", r"\[run\] steps = 0"),
    setting("run.steps", "-3", r"\[run\] steps = -3"),
    setting("run.steps", "many", r"\[run\] steps = 'many'"),
    setting("run.steps", "2.5", r"\[run\] steps = 2\.5"),
    setting("run.seed", "-1", r"\[run\] seed = -1"),
    setting("run.threads", "-1", r"\[run\] threads = -1"),
    setting("run.tracker", "mlflow", r"\[run\] tracker = 'mlflow'.*tensorboard"),
    setting("run.tracker", "wandb", r"wandb.*pip install wandb"),
    setting("optim.lr", "nan", r"\[optim\] lr = nan"),
    setting("optim.lr", "inf", r"\[optim\] lr = inf"),
    setting("optim.lr", "-1e-3", r"\[optim\] lr = -0\.001"),
    setting("ppo.beta", "nan", r"\[ppo\] beta = nan"),
    setting("ppo.gamma", "1.5", r"\[ppo\] gamma = 1\.5"),
    setting("ppo.minibatches", "3", r"rollout\.batch_size = 4 is not a multiple of ppo\.minibatches = 3"),
    setting("reward.positive", "nan", r"\[reward\] positive = nan"),
    setting("reward.negative", "-inf", r"\[reward\] negative = -inf"),
    setting("reward.mode", "loose", r"\[reward\] mode = 'loose'.*strict.*contract.*expand"),
    setting("rollout.temperature", "0", r"\[rollout\] temperature = 0"),
    setting("rollout.top_p", "0.9", "top_p would sample from something other than the policy"),
    setting("rollout.max_new_tokens", "64", "leaves no room for a prompt"),
    setting("rollout.eos_token_ids", "[999999]", r"999999.*embedding"),
    setting("model.value", "adapter", r'model\.value = "adapter" needs model\.lora_r > 0'),
    setting("model.dtype", "float8", r"\[model\] dtype = 'float8'"),
    setting("model.path", "missing", r"cannot load .* from 'missing'"),
    setting("model.path", "colours.py", r"cannot load .* from 'colours\.py'"),
    setting("model.path", "runs/done", r"cannot load .* from 'runs/done'"),
    setting("data.task", "summarization", r"data\.task and data\.train are both set"),
    setting("data.train", "missing.jsonl", r"missing\.jsonl.*No such file"),
    setting("data.train", "policy", r"policy.*Is a directory"),
    setting("critic.match", "fuzzy", r"\[critic\] match = 'fuzzy'"),
    setting("critic.use", "colours", r'a critic is given as "module:name", got .colours.'),
    setting("critic.use", "colors:critic", r"colors:critic.*no module .colors."),
    setting("critic.use", "colours:critics", r"colours:critics.*no attribute .critics.|colours:critics.*colours has no"),
    setting("critic.use", "colours:COLOURS", r"colours:COLOURS"),
    setting("refresh.steps", "[1]", r"refresh"),
    setting("run.out", "my.toml", r"my\.toml.*(File exists|Not a directory|is a file)"),
    setting("run.out", "my.toml/deeper", r"my\.toml/deeper.*is a file"),
    setting("run.out", "/proc/nothing", r"/proc/nothing.*choose another"),
    Trial("LoRA on unknown modules", "train my.toml --set model.lora_r=2 --set model.lora_targets=q_porj",
          ("q_porj.*q_proj",)),
    Trial("no data", "train bad.toml --critic colours:critic", (r"\[data\] names neither a task nor a train file",),
          files={"bad.toml": '[model]\npath = "policy"\n'}),
    Trial("no model", "train bad.toml", (r"\[model\] path is not set; set it, or give --model",), files={"bad.toml": ""}),
    Trial("no critic", "train bad.toml", ("there is no critic",),
          files={"bad.toml": '[model]\npath = "policy"\n[data]\ntrain = "prompts.jsonl"\n'}),
    Trial("unknown task", "train bad.toml", ("poetry.*summarization",),
          files={"bad.toml": '[model]\npath = "policy"\n[data]\ntask = "poetry"\n'}),
    Trial("learned critic that is not there", "train my.toml --set critic.use= --set critic.model=missing", ("missing",)),
    Trial("learned critic that is a policy", "train my.toml --set critic.use= --set critic.model=policy", ("JSON of a critique",)),
    Trial("learned critic of another kind",
          "train my.toml --set critic.use= --set critic.model=runs/critic/model --set critic.kind=probe",
          ("critic.kind has no value 'probe'",)),
    Trial("recipe with a byte order mark", "train bad.toml --set run.steps=1", (), 0,
          prepare=lambda folder: (folder / "bad.toml").write_bytes(b"\xef\xbb\xbf" + (folder / "my.toml").read_bytes()),
          writes=True),
]  # fmt: skip

PROMPTS = [
    prompts("no prompts", "", r"prompts\.jsonl holds no examples"),
    prompts("blank lines only", "\n  \n", r"prompts\.jsonl holds no examples"),
    prompts("line that is no JSON", PROMPT + "{oops\n", r"prompts\.jsonl:2: not JSON"),
    prompts("line that is a list", PROMPT + "[1]\n", r"prompts\.jsonl:2: a record is a JSON object, got list"),
    prompts("prompt misspelt", '{"promt": "x"}\n', r'prompts\.jsonl:1: an example is an object with a "prompt"'),
    prompts("prompt is a number", '{"prompt": 3}\n', r"prompts\.jsonl:1: .prompt. is a text or a list"),
    prompts("prompt is empty chat", '{"prompt": []}\n', r"prompts\.jsonl:1: .prompt. is a text or a list"),
    prompts("reference is a list", '{"prompt": "red", "reference": ["x"]}\n', r"prompts\.jsonl:1: .reference. is a text"),
    prompts("meta is a text", '{"prompt": "red", "meta": "x"}\n', r"prompts\.jsonl:1: .meta. is an object"),
    prompts("prompts in UTF-16", PROMPT.encode("utf-16"), r"prompts\.jsonl.*(utf-8|UTF-8)"),
    prompts("prompts in Latin-1", b'{"prompt": "caf\xe9"}\n', r"prompts\.jsonl.*(utf-8|UTF-8)"),
    prompts("prompts with a byte order mark", b"\xef\xbb\xbf" + PROMPT.encode(), code=0, writes=True),
    prompts("prompts with Windows line ends", PROMPT.replace("\n", "\r\n"), code=0, writes=True),
    prompts("chat without template", '{"prompt": [{"role": "user", "content": "red"}]}\n', "chat template"),
    prompts("chat format without template", PROMPT, "chat template", more="--set model.prompt_format=chat"),
    prompts("chat message without role", '{"prompt": [{"content": "x"}]}\n', r"prompts\.jsonl:1: .prompt."),
    prompts("prompt too long", '{"prompt": "' + "red " * 80 + '"}\n', "more than 59 tokens", "too_long"),
    prompts("a missing number of pandas", '{"prompt": "red", "meta": {"x": NaN}}\n', code=0, writes=True),
    prompts("lone surrogate", '{"prompt": "red \\ud800"}\n', r"prompts\.jsonl:1.*surrogate"),
    prompts("ids twice", '{"prompt": "red", "id": "a"}\n{"prompt": "one", "id": "a"}\n', code=0, writes=True),
]  # fmt: skip

CRITICS = [
    critic("critic with a syntax error", "def critic(a, b)\n    return []\n", r"mine\.py:1", "mine:critic"),
    critic("critic that raises on import", "raise ValueError('no key')\n", "mine:critic", "no key", r"mine\.py"),
    critic("critic that imports what is not there", "import nothing_of_this_name\n", "nothing_of_this_name"),
    critic("critic that raises", "def critic(examples, responses):\n    return 1 / 0\n", "division by zero",
           r"mine\.py:2", writes=True),
    critic("critic that fails on one response", "def critic(examples, responses):\n    return [judge(r) for r in responses]\n"
           "def judge(response):\n    raise KeyError('score')\n", "score", r"mine\.py:4", writes=True),
    critic("critic that returns too few", "def critic(examples, responses):\n    return []\n", r"0 critiques.*4 responses|4 responses.*0", writes=True),
    critic("critic that returns nothing", "def critic(examples, responses):\n    pass\n", "None", writes=True),
    critic("critic that returns lists", "def critic(examples, responses):\n    return [[1.0]] * len(responses)\n",
           r"1\.0|list", writes=True),
    critic("critic whose spans leave the response",
           "from text2grad import Critique, Span\ndef critic(examples, responses):\n"
           "    return [Critique('x', (Span(0, 999, 'positive'),)) for _ in responses]\n", "999", writes=True),
    critic("critic that nobody can read", "def critic(examples, responses):\n    return ['{\"feedback\": \"no'] * len(responses)\n",
           "could not be read", "100", writes=True),
    critic("critic that wants more arguments", "class critic:\n    def __init__(self, key):\n        pass\n",
           "without arguments"),
    critic("critic that calls exit", "import sys\ndef critic(examples, responses):\n    sys.exit('bye')\n", "bye|exit",
           writes=True),
    critic("critic that labels nothing", "from text2grad import Critique\ndef critic(examples, responses):\n"
           "    return [Critique('Fine.') for _ in responses]\n", "label", code=3, writes=True, steps=4),
]  # fmt: skip

MODELS = [
    Trial("weights cut", "train my.toml", ("policy.*safetensors",), prepare=edited("policy/model.safetensors", half)),
    Trial("weights garbage", "train my.toml", ("policy.*safetensors",), prepare=edited("policy/model.safetensors", garbage)),
    Trial("weights missing", "train my.toml", ("policy",), prepare=removed("policy/model.safetensors")),
    Trial("weights pickled", "train my.toml", ("policy.*safetensors",), prepare=only_pickled_weights),
    Trial("config missing", "train my.toml", ("policy",), prepare=removed("policy/config.json")),
    Trial("config garbage", "train my.toml", ("policy",), prepare=edited("policy/config.json", garbage)),
    Trial("config of an unknown type", "train my.toml", ("policy",),
          prepare=edited("policy/config.json", lambda data: data.replace(b'"llama"', b'"lama"'))),
    Trial("tokenizer missing", "train my.toml", ("tokenizer from 'policy'",), prepare=removed("policy/tokenizer.json")),
    Trial("tokenizer garbage", "train my.toml", ("tokenizer from 'policy'",), prepare=edited("policy/tokenizer.json", garbage)),
    Trial("padding token beyond the embedding", "train my.toml --set run.steps=1", (), 0, prepare=unresized_token, writes=True),
    Trial("token beyond the embedding", "train my.toml", (r"the id 16, .*embedding",), prepare=unresized_token,
          files={"prompts.jsonl": '{"prompt": "red <|beyond|>"}\n'}),
]  # fmt: skip

RUNS = [
    Trial("the directory holds a run", DONE, (r"runs/done already holds a run.*--resume.*--out",)),
    Trial("resume without a run", "train my.toml --resume", (r"runs/mine holds no run to resume",)),
    Trial("resume a finished run", f"{DONE} --resume", (), 0, writes=True),
    Trial("resume with another learning rate", f"{DONE} --resume --set optim.lr=0.5", (r"optim\.lr.*0\.5",)),
    Trial("resume with another seed", f"{DONE} --resume --set run.seed=7", (r"run\.seed.*0.*7",)),
    Trial("resume with other prompts", f"{DONE} --resume", (r"data\.train|prompts\.jsonl",),
          files={"prompts.jsonl": PROMPT * 3}),
    Trial("resume with more steps of a schedule", f"{DONE} --resume --set run.steps=9", (r"run\.steps.*2.*9", "schedule")),
    Trial("run.json cut", f"{DONE} --resume", (r"run\.json",), prepare=edited("runs/done/run.json", half)),
    Trial("run.json of something else", f"{DONE} --resume", (r"run\.json",), prepare=edited("runs/done/run.json", lambda _: b"{}")),
    Trial("state of the checkpoint cut", f"{DONE} --resume", ("step-000002",), prepare=in_newest_checkpoint("state.json", half)),
    Trial("weights of the checkpoint cut", f"{DONE} --resume", ("step-000002",),
          prepare=in_newest_checkpoint("trainable.safetensors", half)),
    Trial("a run of another kind", "train my.toml --out runs/critic --resume", ("runs/critic",)),
    Trial("generate from no run", "generate policy", ("policy holds no run",)),
    Trial("generate from a folder that is not there", "generate missing", ("missing holds no run",)),
    Trial("generate from a run without checkpoint", "generate runs/done --prompt red", ("runs/done holds no run with a checkpoint",),
          prepare=lambda folder: shutil.rmtree(folder / "runs/done/checkpoints")),
    Trial("generate with a broken run.json", "generate runs/done --prompt red", (r"run\.json",),
          prepare=edited("runs/done/run.json", half)),
    Trial("generate for a prompt", "generate runs/done --prompt red --prompt 'one two'", ("Colours are welcome",), 0),
    Trial("generate for a prompt that is too long", f"generate runs/done --prompt '{'red ' * 80}'", ("more than 59 tokens",)),
    Trial("generate no examples", "generate runs/done --examples 0", ("examples",)),
]  # fmt: skip

REWARD = [
    Trial("reward without annotations", "reward judge.toml --set reward_model.annotations=[]", ("annotations",)),
    Trial("reward on a file that is not there", "reward judge.toml --annotations missing.jsonl", (r"missing\.jsonl.*No such file",)),
    Trial("reward on an empty file", "reward judge.toml", (r"annotations\.jsonl",), files={"annotations.jsonl": ""}),
    Trial("reward on a broken line", "reward judge.toml", (r"annotations\.jsonl:2",), files={"annotations.jsonl": ANNOTATION + "{\n"}),
    Trial("reward on spans beyond the response", "reward judge.toml", (r"annotations\.jsonl:1",),
          files={"annotations.jsonl": ANNOTATION.replace('"end": 4', '"end": 400')}),
    Trial("reward on one annotation", "reward judge.toml", ("held",), files={"annotations.jsonl": ANNOTATION}),
    Trial("reward that holds all out", "reward judge.toml --set reward_model.held_out=1.0", (r"held_out = 1\.0",)),
    Trial("reward held out of itself", "reward judge.toml --set reward_model.held_out=annotations.jsonl", ("annotations",)),
    Trial("reward held-out file missing", "reward judge.toml --set reward_model.held_out=missing.jsonl", (r"missing\.jsonl",)),
    Trial("reward without a model", "reward judge.toml --model missing", (r"from 'missing'",)),
    Trial("reward with all too long", "reward judge.toml --set reward_model.max_tokens=4", ("max_tokens",)),
    Trial("reward into nothing", "reward judge.toml --out ''", (r"reward_model\.out is an empty text",)),
    Trial("reward elsewhere names that place", "reward judge.toml --out 'runs/a b'",
          (r"evaluate critic judge\.toml --set 'reward_model\.out=runs/a b'",), 0, writes=True),
    Trial("reward into a run", "reward judge.toml --out runs/critic", ("runs/critic already holds a run",)),
    Trial("reward resumed without a run", "reward judge.toml --resume", ("runs/judge holds no run to resume",)),
    Trial("reward resumed with other annotations", "reward judge.toml --out runs/critic --resume", ("annotations",),
          prepare=edited("annotations.jsonl", lambda data: data.split(b"\n", 3)[3])),
    Trial("reward on a misspelt LoRA target", "reward judge.toml --set model.lora_r=2 --set model.lora_targets=[\\'q_porj\\']",
          ("q_porj",)),
]  # fmt: skip

ANNOTATE = [
    Trial("annotate without a model", "annotate ask.toml --set annotate.model=", (r"\[annotate\] model",)),
    Trial("annotate without a key", "annotate ask.toml --set annotate.api_key_env=NO_SUCH_KEY", ("NO_SUCH_KEY",)),
    Trial("annotate at no address", "annotate ask.toml --set annotate.base_url=judge", ("base_url|judge",)),
    Trial("annotate where nobody answers", "annotate ask.toml", ("connection", r"failures\.jsonl"), 3, writes=True),
    Trial("annotate nothing", "annotate ask.toml --limit 0", ("--limit: expected a whole number of at least 1",)),
    Trial("annotate for nan", "annotate ask.toml --max-cost nan", ("--max-cost: expected a finite number",)),
    Trial("annotate for less than nothing", "annotate ask.toml --max-cost -1", ("--max-cost: expected a finite number",)),
    Trial("annotate with a budget without prices", "annotate ask.toml --max-cost 5", ("max_cost needs prices",)),
    Trial("annotate at a price of inf", "annotate ask.toml --set annotate.prices=[inf,1]", ("prices",)),
    Trial("annotate without responses", "annotate ask.toml", (r"responses\.jsonl",), prepare=removed("responses.jsonl")),
    Trial("annotate ids twice", "annotate ask.toml", (r"responses\.jsonl", "id"),
          files={"responses.jsonl": '{"prompt": "a", "response": "b", "id": "1"}\n{"prompt": "a", "response": "c", "id": "1"}\n'}),
    Trial("annotate a response of the wrong type", "annotate ask.toml", (r"responses\.jsonl", "response"),
          files={"responses.jsonl": '{"prompt": "a", "response": 3}\n'}),
    Trial("annotate into a file", "annotate ask.toml --out my.toml", (r"my\.toml",)),
]  # fmt: skip

SPAN_RECORD = (
    '{"prompt": "q", "response": "red cat", "spans": [{"start": %s, "end": 3, "label": "positive"}], '
    '"feedback": %s, "outcome": %s}\n'
)


def table(name: str, text: str, says: str) -> Trial:
    """Return a trial of the import of records."""
    return Trial(name, "feedback import table t.jsonl --out x.jsonl", (says, "--skip-bad"), files={"t.jsonl": text})


FEEDBACK = [
    Trial("import an unknown format", "feedback import csv annotations.jsonl --out x.jsonl", ("csv.*table",)),
    Trial("import a missing file", "feedback import table missing.jsonl --out x.jsonl", (r"missing\.jsonl",)),
    Trial("import onto a file", "feedback import table annotations.jsonl --out prompts.jsonl", (r"prompts\.jsonl.*--force",)),
    Trial("import to an unknown type", "feedback import table annotations.jsonl --out x.txt", (r"x\.txt",)),
    Trial("import without columns", "feedback import table t.csv --out x.jsonl", (r"t\.csv|response",), files={"t.csv": "a,b\n1,2\n"}),
    Trial("import unknown columns", "feedback import table t.csv --out x.jsonl --column response=c", ("c",), files={"t.csv": "a,b\n1,2\n"}),
    Trial("import a column without =", "feedback import table t.csv --out x.jsonl --column response", ("response",), files={"t.csv": "a,b\n1,2\n"}),
    Trial("import an unknown label", "feedback import label_studio t.json --out x.jsonl --label Bad=awful", ("awful",), files={"t.json": "[]"}),
    Trial("import broken JSON", "feedback import label_studio t.json --out x.jsonl", (r"t\.json",), files={"t.json": "[{]"}),
    Trial("import feedback that is none", "feedback import qa_feedback annotations.jsonl --out x.jsonl", (r"annotations\.jsonl",)),
    Trial("import no records", "feedback import table annotations.jsonl --out x.jsonl --limit 0", ("--limit",)),
    *(table(f"import {name}", text, says) for name, text, says in (
        ("offsets with a fraction", SPAN_RECORD % (0.5, '"f"', "null"), r"t\.jsonl:1.*whole numbers.*0\.5"),
        ("offsets that are true", SPAN_RECORD % ("true", '"f"', "null"), r"t\.jsonl:1.*whole numbers.*true"),
        ("offsets that are a word", SPAN_RECORD % ('"first"', '"f"', "null"), r"t\.jsonl:1.*whole numbers"),
        ("an infinite outcome", SPAN_RECORD % (0, '"f"', "1e400"), r"t\.jsonl:1.*outcome.*Infinity"),
        ("an outcome that is nan", SPAN_RECORD % (0, '"f"', "NaN"), r"t\.jsonl:1.*outcome.*NaN"),
        ("an outcome that is true", SPAN_RECORD % (0, '"f"', "true"), r"t\.jsonl:1.*outcome.*true"),
        ("feedback that is a number", SPAN_RECORD % (0, "7", "null"), r"t\.jsonl:1.*feedback.*7"),
        ("a number of 5,000 digits", '{"n": ' + "9" * 5000 + "}\n", r"t\.jsonl:1: not JSON that can be read.*4300"),
    )),
    Trial("import columns of one name", "feedback import table t.csv --out x.jsonl", (r't\.csv:1.*"response" twice',),
          files={"t.csv": "prompt,response,response,feedback\nq,a,b,fine\n"}),
    Trial("import a table with an open quotation mark", "feedback import table t.csv --out x.jsonl", (r"t\.csv, after line 2",),
          files={"t.csv": 'prompt,response,feedback\nq,a,fine\nq,"open,fine\n'}),
    Trial("import a table in Latin-1", "feedback import table t.csv --out x.jsonl", (r"t\.csv: not UTF-8.*save the table as UTF-8",),
          files={"t.csv": b"prompt,response,feedback\nq,caf\xe9,fine\n"}),
    Trial("import a cell of 200,000 characters", "feedback import table t.csv --out x.jsonl", ("annotations 1", "text2grad annotate"), 0,
          files={"t.csv": "prompt,response,feedback\nq," + "a" * 200_000 + ",fine\n"}, writes=True),
    Trial("import feedback on an empty response", "feedback import table t.csv --out x.jsonl", ("1 × feedback without a response",), 0,
          files={"t.csv": "prompt,response,feedback\nq,,fine\n"}, writes=True),
    Trial("import onto the source", "feedback import table annotations.jsonl --out annotations.jsonl --force", ("is the source itself",)),
    Trial("import from nowhere", "feedback import table '' --out x.jsonl", ("path of the source is empty",)),
    Trial("import a folder of a model", "feedback import table policy --out x.jsonl", (r"policy \[train\]: record 1.*neither a .response.",)),
    Trial("import bad records only", "feedback import table t.jsonl --out x.jsonl --skip-bad", (r"t\.jsonl:1: not JSON", "no record can be used"),
          files={"t.jsonl": "{oops\n"}),
    Trial("import a table with a byte order mark", "feedback import table t.csv --out x.jsonl", (), 0, writes=True,
          files={"t.csv": b"\xef\xbb\xbfprompt,response,feedback\nq,a,fine\n"}),
    Trial("export a missing file", "feedback export missing.jsonl --out d", (r"missing\.jsonl",)),
    Trial("export into a folder with files", "feedback export annotations.jsonl --out reward", ("reward.*--force",)),
    Trial("export onto another's README", "feedback export annotations.jsonl --out d", ("README.md.*--force|d.*--force",), files={"d/README.md": "# Mine\n"}),
    Trial("export onto a file", "feedback export annotations.jsonl --out my.toml", (r"my\.toml",)),
    Trial("export nothing", "feedback export empty.jsonl --out d", (r"empty\.jsonl",), files={"empty.jsonl": ""}),
]  # fmt: skip

EVALUATE = [
    Trial("evaluate nothing", "evaluate critic annotations.jsonl --out runs/e", ("--model, --critic or --predictions",)),
    Trial("evaluate two critics", "evaluate critic annotations.jsonl --out runs/e --model policy --critic colours:critic",
          ("not allowed with",)),
    Trial("evaluate a missing model", "evaluate critic annotations.jsonl --out runs/e --model missing", ("missing",)),
    Trial("evaluate on a missing file", "evaluate critic missing.jsonl --out runs/e --critic colours:critic --tokenizer policy", (r"missing\.jsonl",)),
    Trial("evaluate with a missing tokenizer", "evaluate critic annotations.jsonl --out runs/e --critic colours:critic --tokenizer missing",
          ("missing",)),
    Trial("evaluate with no votes", "evaluate critic annotations.jsonl --out runs/e --model runs/critic/model --set critic.votes=0", ("votes",)),
    Trial("evaluate a critic that raises", "evaluate critic annotations.jsonl --out runs/e --critic mine:critic --tokenizer policy",
          ("division by zero", r"mine\.py"), files={"mine.py": "def critic(examples, responses):\n    return 1 / 0\n"}, writes=True),
    Trial("evaluate other predictions", "evaluate critic annotations.jsonl --out runs/e --predictions p.jsonl --tokenizer policy", ("p.jsonl|prediction",),
          files={"p.jsonl": ANNOTATION}),
    Trial("evaluate into a full folder", "evaluate critic annotations.jsonl --out reward --critic colours:critic --tokenizer policy", ("reward",)),
    Trial("judge of missing files", "evaluate pairs a.jsonl b.jsonl --judge ask.toml --out runs/w", (r"a\.jsonl",)),
    Trial("judge without a recipe", "evaluate pairs a.jsonl b.jsonl --judge missing.toml --out runs/w", (r"missing\.toml",)),
    Trial("judge of other prompts", "evaluate pairs a.jsonl b.jsonl --judge ask.toml --out runs/w", ("prompt",),
          files={"a.jsonl": RESPONSE, "b.jsonl": RESPONSE.replace("one", "two")}),
    Trial("judge for nan", "evaluate pairs a.jsonl a.jsonl --judge ask.toml --out runs/w --max-cost nan", ("--max-cost: expected a finite number",),
          files={"a.jsonl": RESPONSE}),
    Trial("judge without a judge", "evaluate pairs a.jsonl a.jsonl --out runs/w", ("--judge",), files={"a.jsonl": RESPONSE}),
    Trial("a dry run of a judge", "evaluate pairs a.jsonl b.jsonl --judge ask.toml --out runs/w --dry-run", ("0 requests",), code=0,
          files={"a.jsonl": RESPONSE, "b.jsonl": RESPONSE}, writes=True),
    Trial("MT-Bench without a judge", "evaluate policy policy --suite mt_bench=x --out runs/v", ("--judge FILE.toml",)),
    Trial("MT-Bench without its files", "evaluate policy policy --suite mt_bench=. --judge ask.toml --out runs/v",
          (r"question\.jsonl", "FastChat")),
    Trial("AlpacaEval without its file", "evaluate policy policy --suite alpaca_eval --judge ask.toml --out runs/v",
          ("no data is given", "tatsu-lab/alpaca_eval")),
    Trial("quickstart of no seed", "quickstart --seeds 0 --out runs/q", ("--seeds: expected a whole number of at least 1",)),
    Trial("quickstart with a misspelt setting", "quickstart --out runs/q --set run.stepps=1", ('Did you mean "steps"',)),
    Trial("quickstart into a file", "quickstart --out my.toml", (r"my\.toml.*choose another",)),
]  # fmt: skip

SFT = "sft my.toml --model policy --out runs/sft --set sft.steps=1 --set sft.batch_size=2 --set sft.max_tokens=32"
CHAT = '{"messages": [{"role": "user", "content": "red"}, {"role": "assistant", "content": "one"}]}\n'

NEW = [
    Trial("sft", SFT, ("next",), 0, writes=True),
    Trial("sft on a missing file", f"{SFT} --data missing.jsonl", (r"missing\.jsonl",)),
    Trial("sft on nothing", f"{SFT} --data empty.jsonl", (r"empty\.jsonl",), files={"empty.jsonl": ""}),
    Trial("sft without references", f"{SFT} --data p.jsonl", (r"p\.jsonl.*reference",), files={"p.jsonl": PROMPT * 4}),
    Trial("sft on an empty reference", f"{SFT} --data p.jsonl", (r"p\.jsonl:1",),
          files={"p.jsonl": '{"prompt": "red", "reference": ""}\n' * 4}),
    Trial("sft on a chat without an answer", f"{SFT} --data p.jsonl", (r"p\.jsonl:1.*assistant",),
          files={"p.jsonl": CHAT.replace("assistant", "user") * 4}),
    Trial("sft on chats without a template", f"{SFT} --data p.jsonl", ("chat template",),
          files={"p.jsonl": "".join(CHAT.replace('"red"', f'"red {n}"') for n in ("one", "two", "three", "cat"))}),
    Trial("sft without a model", "sft my.toml --model missing --out runs/sft", ("missing",)),
    Trial("sft into a run", f"{SFT.replace('runs/sft', 'runs/done')}", ("runs/done already holds a run",)),
    Trial("sft resumed without a run", f"{SFT} --resume", ("runs/sft holds no run",)),
    Trial("sft on too long demonstrations", f"{SFT} --set sft.max_tokens=1", ("max_tokens",)),
    Trial("sft on a misspelt LoRA target", f"{SFT} --set model.lora_r=2 --set model.lora_targets=q_porj", ("q_porj",)),
    Trial("sft with a dropout of nan", f"{SFT} --set sft.lora_dropout=nan", ("lora_dropout",)),
    Trial("dry run", "train my.toml --dry-run", ("peak",), 0),
    Trial("dry run without a recipe", "train missing.toml --dry-run", (r"missing\.toml",)),
    Trial("dry run without a model", "train my.toml --model missing --dry-run", ("missing",)),
    Trial("dry run without a critic", "train my.toml --set critic.use= --dry-run", ("critic",)),
    Trial("dry run on an unknown device", "train my.toml --dry-run --device abacus", ("abacus.*a size such as 16GB",)),
    Trial("dry run in too little memory", "train my.toml --dry-run --device 1GB", ("does not fit",), 1),
    Trial("dry run for no processes", "train my.toml --dry-run --processes 0", ("--processes",)),
    Trial("dry run into a run", "train my.toml --dry-run --out runs/done", ("runs/done already holds a run",)),
    Trial("dry run that judges", "train my.toml --dry-run --judge", ("kappa|κ|agree",), 0),
    Trial("dry run with a critic that raises", "train my.toml --dry-run --judge --critic mine:critic", (r"mine\.py:2",),
          files={"mine.py": "def critic(examples, responses):\n    return 1 / 0\n"}, writes=True),
    Trial("judge without a dry run", "train my.toml --judge", ("add --dry-run",)),
    Trial("compare", "compare runs/done runs/again --out c", ("again",), 0, writes=True, prepare=another_rate),
    Trial("compare a run with itself", "compare runs/done runs/done --out c", ("runs/done",)),
    Trial("compare what is no run", "compare runs/done policy --out c", ("policy",)),
    Trial("compare one run", "compare runs/done --out c", ("two|at least|runs",)),
    Trial("compare a broken run", "compare runs/done runs/again --out c", ("metrics.jsonl",),
          prepare=lambda folder: (shutil.copytree(folder / "runs/done", folder / "runs/again"),
                                  (folder / "runs/again/metrics.jsonl").write_bytes(b"{oops\n"))),
    Trial("doctor", "doctor", ("torch",), 0),
    Trial("recipe of a section", "recipe ppo", ("clip_range",), 0),
    Trial("recipe of an unknown section", "recipe poo", ("poo.*ppo",)),
    Trial("a small held-out share holds one prompt out", "train my.toml --set data.held_out=0.001", ("1 held out",), 0, writes=True),
    Trial("held-out share above 1", "train my.toml --set data.held_out=1.5", ("held_out",)),
    Trial("held-out file missing", "train my.toml --set data.held_out=missing.jsonl", (r"missing\.jsonl",)),
    Trial("held-out file of the same prompts", "train my.toml --set data.held_out=prompts.jsonl", ("prompts",)),
    Trial("metric that is not there", "train my.toml --set data.metric=mine:metric --set data.held_out=0.3", ("mine",)),
    Trial("metric that raises", "train my.toml --set data.metric=mine:metric --set data.held_out=0.3", (r"mine\.py:2",),
          files={"mine.py": "def metric(example, response):\n    return 1 / 0\n"}, writes=True),
    Trial("metric that is no number", "train my.toml --set data.metric=mine:metric --set data.held_out=0.3", ("metric",),
          files={"mine.py": "def metric(example, response):\n    return {'a': float('nan')}\n"}, writes=True),
    Trial("metric that returns a text", "train my.toml --set data.metric=mine:metric --set data.held_out=0.3", ("metric",),
          files={"mine.py": "def metric(example, response):\n    return 'good'\n"}, writes=True),
    Trial("own held-out prompts", "train my.toml --set data.held_out=0.3", ("before|step 0", "reward"), 0, writes=True),
]  # fmt: skip

RETURNS = "from text2grad import Critique, Span\ndef critic(examples, responses):\n    return [{} for r in responses]\n"
OWN_CRITIC, OWN_METRIC = (
    "train my.toml --critic mine:critic",
    "train my.toml --set data.metric=mine:metric --set data.held_out=0.3",
)

TYPES = [
    Trial("critic that changes the directory", OWN_CRITIC, ("the critic labelled no token",), 3, writes=True,
          files={"mine.py": "import os\n" + RETURNS.format("os.chdir('/') or Critique('x')")}),
    Trial("critic with feedback of None", OWN_CRITIC, ("feedback is a NoneType; a str is needed",), writes=True,
          files={"mine.py": RETURNS.format("Critique(None)")}),
    Trial("critic with spans of None", OWN_CRITIC, ("spans are a NoneType; a tuple of Span",), writes=True,
          files={"mine.py": RETURNS.format("Critique('x', None)")}),
    Trial("critic with tuples as spans", OWN_CRITIC, ("a tuple among its spans",), writes=True,
          files={"mine.py": RETURNS.format("Critique('x', ((0, 1, 'positive'),))")}),
    Trial("critic with a word as outcome", OWN_CRITIC, ("outcome is a str; a number",), writes=True,
          files={"mine.py": RETURNS.format("Critique('x', outcome='1')")}),
    Trial("critic with a huge outcome", OWN_CRITIC, (r"outcome 1e\+300 is no finite number of at most 1e\+09",), writes=True,
          files={"mine.py": RETURNS.format("Critique('x', outcome=1e300)")}),
    Trial("critic with an outcome beyond floats", OWN_CRITIC, ("outcome inf is no finite number",), writes=True,
          files={"mine.py": RETURNS.format("Critique('x', outcome=10**400)")}),
    Trial("critic with a status of its own", OWN_CRITIC, ("status 'great'; choose from ok",), writes=True,
          files={"mine.py": RETURNS.format("Critique('x', status='great')")}),
    Trial("critic whose task is cancelled", OWN_CRITIC, (r"CancelledError at mine\.py:3",), writes=True,
          files={"mine.py": "import asyncio\ndef critic(examples, responses):\n    raise asyncio.CancelledError\n"}),
    Trial("metric that changes the directory", OWN_METRIC, ("held-out responses",), 0, writes=True,
          files={"mine.py": "import os\ndef metric(example, response):\n    os.chdir('/')\n    return {'a': True}\n"}),
    Trial("metric beyond floats", OWN_METRIC, ("for 'a'; leave no number undefined",), writes=True,
          files={"mine.py": "def metric(example, response):\n    return {'a': 10**400}\n"}),
    Trial("metric whose sum is infinite", OWN_METRIC, ("returned 1e.308 for 'a'",), writes=True,
          files={"mine.py": "def metric(example, response):\n    return {'a': 1e308}\n"}),
    Trial("an empty option", "train my.toml --out ''", (r"run\.out is an empty text",)),
    Trial("a directory in the home directory", "train my.toml --dry-run --model '~/missing'", ("'/.*/missing'",)),
    Trial("a name with NUL", "train my.toml --set 'run.out=\"a\\u0000b\"'", ("NUL",)),
    Trial("a name that is too long", f"train my.toml --out {'a' * 300}", ("File name too long",)),
    Trial("a run as model", "train my.toml --model runs/done", ("which holds a run; its policy is runs/done/checkpoints/step-000002/policy",)),
    Trial("a key in a wrong section", "train my.toml --set run.lr=1e-3", (r"has no key .lr.*a key of .*\[optim\]",)),
    Trial("more threads than a number holds", "train my.toml --set run.threads=1000000000000000", ("threads",)),
    Trial("resume without checkpoints", "train my.toml --out runs/done --resume", ("2 finished steps in metrics.jsonl, and their checkpoints are gone",),
          prepare=lambda folder: shutil.rmtree(folder / "runs/done/checkpoints")),
    Trial("resume without rollouts", "train my.toml --out runs/done --resume", ("report",), 0, writes=True,
          prepare=lambda folder: shutil.rmtree(folder / "runs/done/rollouts")),
    Trial("resume with metrics cut", "train my.toml --out runs/done --resume", (r"cannot read .*metrics\.jsonl",),
          files={"runs/done/metrics.jsonl": "{oops"}, writes=True),
    Trial("sft into a path with a space", SFT.replace("runs/sft", "'runs/s ft'"), ("'model.path=runs/s ft/model'",), 0, writes=True),
    Trial("sft of a tokenizer without an end", SFT, ("no end-of-sequence token",),
          prepare=lambda folder: (folder / "policy/tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')),
]  # fmt: skip

TRIALS = [*RECIPES, *PROMPTS, *CRITICS, *MODELS, *RUNS, *REWARD, *ANNOTATE, *FEEDBACK, *EVALUATE, *NEW, *TYPES]


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_a_wrong_input(trial: Trial, world: Path, tmp_path: Path) -> None:
    check(trial, world, tmp_path / "work")


def test_there_are_enough_trials() -> None:
    assert len(TRIALS) >= 150
    assert len({trial.name for trial in TRIALS}) == len(TRIALS)
