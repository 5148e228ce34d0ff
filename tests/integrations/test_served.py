"""The clients of docs/engines.md beside the engines' own functions; without an engine, beside a stand-in of its parts.

`make verl-test` has both engines. A client has the rewards of `SpanAgentLoop`'s way within the process.
"""

import asyncio
import re
import sys
import threading
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import BaseModel

from asked_service import HeldCritic, post, served, waits_for
from places import ROOT
from text2grad.integrations.verl_scores import example_of, judge_response, shared_judge
from text2grad.rl.advantages import gae, whiten
from text2grad.runs.critic_service import CriticServer
from text2grad.tasks.tiny import word_tokenizer
from verl_critics import critic

pytestmark = pytest.mark.filterwarnings("ignore")

TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"
TOKENIZER = word_tokenizer(["please yes or later no Well? You are a helpful assistant. I am a user. "])
TOKENIZER.chat_template = TEMPLATE
IDS = TOKENIZER("please yes or later").input_ids
MESSAGES = [{"role": "user", "content": "Well?"}]
BLOCKS = dict(
    re.findall(
        r"^```python\n# (served_\w+)\.py\n(.*?)^```$", (ROOT / "docs" / "engines.md").read_text("utf-8"), re.S | re.M
    )
)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CriticServer]:
    """Yield a service; the clients of the page can be imported, and know its address."""
    for name, text in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(text, "utf-8")
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("TEXT2GRAD_SERVE_TOKEN", "secret")
    with served(critic, tmp_path, tokenizer=TOKENIZER, token="secret", positive=2.0, truncated=-1.0) as service:
        monkeypatch.setenv("TEXT2GRAD_SERVE_URL", f"http://127.0.0.1:{service.server_port}")
        yield service
    for name in BLOCKS:
        sys.modules.pop(name, None)


def stand_in(monkeypatch: pytest.MonkeyPatch, module: str, **names: Any) -> None:
    """Put a module with some names, and the packages above it, where imports look."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
    vars(sys.modules[module]).update(names)


def test_the_clients_are_short() -> None:
    assert set(BLOCKS) == {"served_rewards", "served_verl", "served_skyrl"}
    assert all(len(text.strip().splitlines()) <= 30 for text in BLOCKS.values())


class Output(BaseModel):
    """The parts of verl's `AgentLoopOutput` that a loop sees."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    reward_score: float | None = None
    extra_fields: dict[str, Any] = {}

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(exclude={"reward_score"})


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the class of verl's output, its own or a stand-in, where the served loop can be imported."""
    package = "verl.experimental.agent_loop"
    try:
        import_module(f"{package}.agent_loop")
    except ImportError:
        stand_in(monkeypatch, f"{package}.agent_loop", AgentLoopOutput=Output, register=lambda name: lambda loop: loop)
        stand_in(monkeypatch, f"{package}.single_turn_agent_loop", SingleTurnAgentLoop=type("Loop", (), {}))
        sys.modules[f"{package}"].agent_loop = sys.modules[f"{package}.agent_loop"]  # type: ignore[attr-defined]
        return Output
    made = import_module(f"{package}.agent_loop")
    metrics = made.AgentLoopMetrics()
    return lambda **parts: made.AgentLoopOutput(metrics=metrics, **parts)


@pytest.mark.parametrize(("length", "mask"), [(8, [1, 1, 1, 1]), (4, [1, 1, 0, 1])])
def test_verls_client_has_the_rewards_of_the_loop_in_the_process(
    server: CriticServer, verl: Any, monkeypatch: pytest.MonkeyPatch, length: int, mask: list[int]
) -> None:
    module = import_module("served_verl")
    single = module.SingleTurnAgentLoop

    async def run(self: Any, sampling_params: Any, **row: Any) -> Any:
        return verl(prompt_ids=[1], response_ids=IDS, response_mask=mask)

    monkeypatch.setattr(single, "run", run, raising=False)
    monkeypatch.setattr(single, "__init__", lambda self: None)
    loop = module.ServedAgentLoop()
    loop.tokenizer, loop.response_length = TOKENIZER, length
    row = {"raw_prompt": MESSAGES, "extra_info": {"n": 1}, "reward_model": {"ground_truth": 3}}
    output = asyncio.run(loop.run({}, **row))
    judge = shared_judge.__wrapped__("verl_critics:critic", '{"positive": 2.0, "truncated": -1.0}', "exact", 0.2)
    ours, _ = judge_response(judge, TOKENIZER, example_of(row), IDS, truncated=length == 4)
    kept = [reward * each for reward, each in zip(ours, mask, strict=True)]
    scores = output.as_dict()["rm_scores"]
    assert scores.dtype == torch.float32
    assert scores.tolist() == kept
    # please, yes or: 2 each, later: -1 + 0.5; cut: -1 more
    assert kept == ([0.0, 2.0, 2.0, -0.5] if length == 8 else [0.0, 2.0, 0.0, -1.5])
    assert output.reward_score == sum(kept)
    assert "token_scores" not in output.as_dict()


def test_verls_own_loop_gives_the_same(server: CriticServer, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verl", reason="verl has an environment of its own: make verl-test")
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop

    from text2grad.integrations.verl import SpanAgentLoop

    async def run(self: Any, sampling_params: Any, **_: Any) -> Any:
        mask = [1] * len(IDS)
        return AgentLoopOutput(prompt_ids=[1], response_ids=IDS, response_mask=mask, metrics=AgentLoopMetrics())

    def init(self: Any, **_: Any) -> None:
        self.config, self.tokenizer, self.response_length = {"trainer": {"use_v1": True}}, TOKENIZER, 4

    monkeypatch.setattr(SingleTurnAgentLoop, "run", run)
    monkeypatch.setattr(SingleTurnAgentLoop, "__init__", init)
    own = SpanAgentLoop(critic="verl_critics:critic", reward={"positive": 2.0, "truncated": -1.0})
    loops = own, import_module("served_verl").ServedAgentLoop()
    first, second = (asyncio.run(loop.run({}, raw_prompt=MESSAGES)).as_dict()["rm_scores"] for loop in loops)
    assert first.tolist() == second.tolist() == [0.0, 2.0, 2.0, -1.5]


class Engine:
    """SkyRL's client of an inference engine; the response to the second prompt was cut."""

    texts = ("please yes or later", "please yes or")

    async def generate(self, engine_input: Any, model: str | None = None) -> dict[str, Any]:
        second = "user" in TOKENIZER.decode(engine_input["prompt_token_ids"][0])
        text, stop = self.texts[second], "length" if second else "stop"
        ids = TOKENIZER(text).input_ids
        return {"responses": [text], "response_ids": [ids], "stop_reasons": [stop], "response_logprobs": None}

    async def finish_session(self, session_id: Any) -> None:
        return None


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch, server: CriticServer) -> Any:
    """Return the served generator of SkyRL, or of a stand-in that samples likewise."""
    if sys.version_info < (3, 12):  # pydantic refuses the other one there, which skyrl 0.3.0 takes
        import typing_extensions

        monkeypatch.setattr(typing, "TypedDict", typing_extensions.TypedDict)
    try:
        import_module("skyrl.train.generators")
    except ImportError:

        class Generator:
            async def generate(self, input_batch: Any, disable_tqdm: bool = False) -> Any:
                prompts = [TOKENIZER(prompt[0]["content"]).input_ids for prompt in input_batch["prompts"]]
                each = [await Engine().generate({"prompt_token_ids": [prompt]}) for prompt in prompts]
                output = {name: [part[name][0] for part in each] for name in ("response_ids", "stop_reasons")}
                return {**output, "rewards": [0.0, 0.0], "prompt_token_ids": [[1], [1]]}

        stand_in(monkeypatch, "skyrl.train.generators", SkyRLGymGenerator=Generator)
        return import_module("served_skyrl").ServedGenerator()
    from skyrl.train.config import GeneratorConfig, SkyRLGymConfig

    settings = GeneratorConfig(max_input_length=64)
    gym = SkyRLGymConfig(max_env_workers=0)
    return import_module("served_skyrl").ServedGenerator(settings, gym, Engine(), TOKENIZER)


def generated(generator: Any) -> Any:
    extras = [{"reward_spec": {"method": "rule", "ground_truth": 3}} for _ in range(2)]
    prompts = [MESSAGES, [{"role": "user", "content": "I am a user."}]]
    batch = {"prompts": prompts, "env_classes": ["gsm8k"] * 2, "env_extras": extras, "sampling_params": None}
    return asyncio.run(generator.generate({**batch, "trajectory_ids": None, "batch_metadata": None}))


def test_skyrls_client_has_a_reward_for_each_id(generator: Any) -> None:
    output = generated(generator)
    assert [TOKENIZER.decode(ids) for ids in output["response_ids"]] == list(Engine.texts)
    # the outcome 0.5 is on the last id, and -1 more where the length limit ended the response
    assert output["rewards"] == [[0.0, 2.0, 2.0, -0.5], [0.0, 2.0, 2.0 + 0.5 - 1.0]]


def test_skyrls_own_functions_learn_from_each_id(generator: Any) -> None:
    pytest.importorskip("skyrl.backends", reason="SkyRL has an environment of its own: make verl-test")
    from skyrl.backends.skyrl_train.utils import ppo_utils
    from skyrl.train.config import AlgorithmConfig
    from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors
    from skyrl.train.trainer import RayPPOTrainer

    output = generated(generator)
    off = SimpleNamespace(step_wise_trajectories=False, merge_stepwise_output=False, n_samples_per_prompt=1)
    own = SimpleNamespace(cfg=SimpleNamespace(generator=off), all_metrics={})
    output, _ = RayPPOTrainer.postprocess_generator_output(own, output, ["a", "b"])
    parts = (output[name] for name in ("prompt_token_ids", "response_ids", "rewards", "loss_masks"))
    _, _, mask, rewards, _, _, _ = convert_prompts_responses_to_batch_tensors(TOKENIZER, *parts)
    assert rewards.tolist() == [[0.0, 2.0, 2.0, -0.5], [0.0, 0.0, 2.0, 1.5]]  # to the right
    torch.manual_seed(0)
    values = torch.randn(2, 4) * mask
    theirs, returns = ppo_utils.compute_advantages_and_returns(
        rewards, mask.float(), ["a", "b"], "gae", AlgorithmConfig(), values=values, gamma=0.5, lambd=0.95
    )
    ours = gae(rewards, values, torch.ones(2, 4, dtype=torch.bool), gamma=0.5, lam=0.95)
    torch.testing.assert_close(returns, ours.returns)
    torch.testing.assert_close(theirs * mask, whiten(ours.advantages, mask.bool()) * mask, atol=1e-5, rtol=0)


def test_the_client_asks_again_while_the_service_is_busy_or_away_and_not_else(
    server: CriticServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = import_module("served_rewards")
    waits: list[float] = []
    started = threading.Event()

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        started.set()
        waits_for(lambda: free.is_set())

    free = threading.Event()
    monkeypatch.setattr(client.time, "sleep", sleep)
    monkeypatch.setenv("TEXT2GRAD_SERVE_TOKEN", "other")
    with pytest.raises(RuntimeError, match="the token is missing or wrong"):
        client.ask(prompt="Well?", text="so")
    assert waits == []
    held, answers = HeldCritic(held=True), list[Any]()
    with served(held, tmp_path / "held", at_once=1) as busy:
        monkeypatch.setenv("TEXT2GRAD_SERVE_URL", f"http://127.0.0.1:{busy.server_port}")
        asked = threading.Thread(target=lambda: answers.append(client.ask(prompt="Well?", text="so", timeout=0.01)))
        asked.start()
        assert started.wait(60)  # 504
        port = busy.server_port
        held.free.set()
        waits_for(lambda: busy.queue.critic.known)
        free.set()
        asked.join()
        assert answers[0] == post(port, {"prompt": "Well?", "text": "so"})[1]
    assert (len(waits), held.calls) == (1, [["so"]])
    monkeypatch.setattr(client, "PATIENCE_S", -1.0)
    with pytest.raises(RuntimeError, match="refused"):
        client.ask(prompt="Well?", text="so")  # nobody listens there any more
