"""A recipe that is wrong is refused before work starts, with a text that says where, what and the way out."""

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from text2grad.config import idle_settings
from text2grad.config.recipe import NOT_THE_POLICY, Recipe, describe, load_recipe, make_recipe
from text2grad.errors import ConfigError


def refusal(data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        make_recipe(data, where="my.toml")
    return str(caught.value)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "empty.toml"
    path.write_text("")
    return path


# Unknown names.


def test_an_unknown_section_is_refused_with_the_nearest_known_one() -> None:
    assert refusal({"rollouts": {"batch_size": 3}}) == (
        'my.toml: no section "rollouts". Did you mean "rollout"? Known sections: annotate, critic, data, engine, '
        "model, optim, ppo, quickstart, refresh, reward, reward_model, rollout, run, server, sft"
    )


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert refusal({"ppo": {"clip_epsilon": 0.2}}) == (
        'my.toml: [ppo] has no key "clip_epsilon". Did you mean "clip_range"? Known keys: baseline, beta, '
        "clip_range, credit, entropy_coef, epochs, gamma, gamma_turn, kl, kl_in, lam, loss_mean, micro_batch_tokens, "
        "minibatches, target_kl, teacher_update_rate, value_clip_range, vf_coef, whiten"
    )


def test_nothing_is_suggested_for_a_key_that_resembles_none() -> None:
    assert refusal({"run": {"zzz": 1}}) == (
        'my.toml: [run] has no key "zzz". Known keys: keep_best, keep_checkpoints, out, save_every, '
        "seed, steps, threads, tracker"
    )


def test_a_key_outside_its_section_is_refused() -> None:
    assert refusal({"beta": 0.1}) == (
        'my.toml: no section "beta". Did you mean "data"? Known sections: annotate, critic, data, engine, '
        "model, optim, ppo, quickstart, refresh, reward, reward_model, rollout, run, server, sft"
    )
    assert refusal({"ppo": 0.1}) == "my.toml: [ppo] is a section of settings, got 0.1"


# Bad values.


@pytest.mark.parametrize(
    ("section", "key", "value", "reason"),
    [
        ("ppo", "gamma", 1.5, "Input should be less than or equal to 1"),
        ("ppo", "lam", -0.1, "Input should be greater than or equal to 0"),
        ("ppo", "clip_range", 0.0, "Input should be greater than 0"),
        ("ppo", "value_clip_range", -1.0, "Input should be greater than or equal to 0"),
        ("ppo", "epochs", 0, "Input should be greater than or equal to 1"),
        ("ppo", "kl", "k3", "Input should be 'k1' or 'full'"),
        ("ppo", "beta", float("nan"), "Input should be a finite number"),
        ("optim", "lr", float("inf"), "Input should be a finite number"),
        ("optim", "lr", 0, "Input should be greater than 0"),
        ("reward", "negative", float("-inf"), "Input should be a finite number"),
        ("reward", "unlabelled", "0.5", "Input should be a valid number"),
        ("rollout", "temperature", 0.0, "Input should be greater than 0"),
        ("rollout", "batch_size", 2.5, "Input should be a valid integer"),
        ("rollout", "batch_size", True, "Input should be a valid integer"),
        ("rollout", "eos_token_ids", 2, "Input should be a valid tuple"),
        ("model", "gradient_checkpointing", "yes", "Input should be a valid boolean"),
        ("model", "trust_remote_code", 1, "Input should be a valid boolean"),
        ("run", "seed", -1, "Input should be greater than or equal to 0"),
        ("run", "seed", 2**32, "Input should be less than 4294967296"),
        ("run", "out", 5, "Input should be a valid string"),
        ("critic", "max_failure_rate", 1.01, "Input should be less than or equal to 1"),
        ("sft", "steps", 0, "Input should be greater than or equal to 1"),
        ("quickstart", "after_reward_model", -1, "Input should be greater than or equal to 0"),
        ("reward_model", "write_feedback", "yes", "Input should be a valid boolean"),
        ("reward_model", "max_new_tokens", 0, "Input should be greater than or equal to 1"),
        ("refresh", "steps", 3, "Input should be a valid tuple"),
        ("refresh", "window", 0, "Input should be greater than or equal to 1"),
        ("refresh", "replay", 1.5, "Input should be less than 1"),
        ("refresh", "audit", -1, "Input should be greater than or equal to 0"),
        ("refresh", "train_steps", 0, "Input should be greater than or equal to 1"),
    ],
)
def test_a_bad_value_is_refused_with_where_what_and_why(section: str, key: str, value: Any, reason: str) -> None:
    assert refusal({section: {key: value}}) == f"my.toml: [{section}] {key} = {value!r}: {reason}"


def test_all_bad_values_are_named_at_once() -> None:
    assert refusal({"ppo": {"gamma": 2, "lam": 3.0}, "run": {"steps": 0}}) == (
        "my.toml: [ppo] gamma = 2: Input should be less than or equal to 1\n"
        "my.toml: [ppo] lam = 3.0: Input should be less than or equal to 1\n"
        "my.toml: [run] steps = 0: Input should be greater than or equal to 1"
    )


def test_the_item_of_a_list_that_is_wrong_is_named() -> None:
    assert refusal({"rollout": {"eos_token_ids": [1, "</s>"]}}) == (
        "my.toml: [rollout] eos_token_ids.1 = '</s>': Input should be a valid integer"
    )


@pytest.mark.parametrize("key", NOT_THE_POLICY.split())
def test_whatever_samples_from_something_other_than_the_policy_is_refused_with_the_reason(key: str) -> None:
    assert refusal({"rollout": {key: 1}}) == (
        f"my.toml: [rollout] {key} would sample from something other than the policy, and PPO's ratios would compare "
        "the wrong distributions; only temperature is possible in rollouts"
    )


def test_that_reason_is_given_for_the_rollout_alone() -> None:
    assert refusal({"ppo": {"top_p": 0.9}}).startswith('my.toml: [ppo] has no key "top_p".')


@pytest.mark.parametrize("key", ["top_p", "top_k", "min_p", "repetition_penalty", "min_length", "num_beams"])
def test_the_well_known_ways_to_leave_the_policy_are_among_them(key: str) -> None:
    assert key in NOT_THE_POLICY.split()


# What must fit together.


def test_a_value_adapter_needs_a_policy_adapter() -> None:
    assert refusal({"model": {"value": "adapter"}}) == 'my.toml: model.value = "adapter" needs model.lora_r > 0'
    assert make_recipe({"model": {"value": "adapter", "lora_r": 1}}).model.lora_r == 1


def test_a_value_adapter_cannot_be_recomputed() -> None:
    model = {"value": "adapter", "lora_r": 4, "gradient_checkpointing": True}
    assert refusal({"model": model}) == (
        'my.toml: model.value = "adapter" and model.gradient_checkpointing do not go together: the recomputation would '
        'run with the wrong adapter. Choose model.value = "trunk" or "model"'
    )
    assert make_recipe({"model": model | {"value": "trunk"}}).model.gradient_checkpointing


@pytest.mark.parametrize(("batch_size", "minibatches"), [(4, 5), (6, 4)])
def test_a_batch_that_minibatches_cannot_share_evenly_is_refused(batch_size: int, minibatches: int) -> None:
    assert refusal({"rollout": {"batch_size": batch_size}, "ppo": {"minibatches": minibatches}}) == (
        f"my.toml: rollout.batch_size = {batch_size} is not a multiple of ppo.minibatches = {minibatches}"
    )
    assert make_recipe({"rollout": {"batch_size": 6}, "ppo": {"minibatches": 3}}).ppo.minibatches == 3


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"rollout": {"batch_size": 6, "group_size": 4}},
            "rollout.batch_size = 6 is not a multiple of rollout.group_size = 4",
        ),
        ({"ppo": {"whiten": "group"}}, 'ppo.whiten = "group" divides by the deviation of a prompt\'s group'),
        ({"ppo": {"baseline": "group"}}, "set rollout.group_size to 2 or more"),
        ({"ppo": {"baseline": "leave_one_out"}, "rollout": {"group_size": 2}}, 'set model.value = "none"'),
    ],
)
def test_groups_that_do_not_fit_are_refused(changed: dict[str, dict[str, object]], reason: str) -> None:
    assert reason in refusal(changed)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"ppo": {"credit": "gated", "whiten": "none"}},
            'my.toml: ppo.credit = "gated" uses no value function, and model.value = "trunk" would train it: set '
            'model.value = "none"',
        ),
        (
            {"ppo": {"credit": "self_teacher"}, "model": {"value": "none"}},
            'my.toml: ppo.whiten = "full" would subtract a mean from the advantages of ppo.credit = "self_teacher": '
            'set it to "scale" or "none"',
        ),
        (
            {
                "ppo": {"credit": "gated", "whiten": "scale"},
                "model": {"value": "none"},
                "reward": {"placement": "lines"},
            },
            'my.toml: ppo.credit = "gated" weighs rewards in their spans: set reward.placement = "spans", now "lines"',
        ),
    ],
)
def test_credit_of_a_teacher_that_does_not_fit_is_refused(changed: dict[str, dict[str, object]], reason: str) -> None:
    assert refusal(changed) == reason


def test_no_memory_for_vllm_is_refused() -> None:
    assert "greater than 0" in refusal({"engine": {"gpu_memory_utilization": 0.0}})


def test_a_refresh_needs_room_for_what_is_new() -> None:
    assert refusal({"refresh": {"replay": 1.0}}) == ("my.toml: [refresh] replay = 1.0: Input should be less than 1")
    assert make_recipe({"refresh": {"replay": 0.99}}).refresh.replay == 0.99


def test_a_critic_is_refreshed_where_a_step_is_named() -> None:
    assert not Recipe().refresh.active
    assert not make_recipe({"refresh": {"audit": 8, "annotator": "my:critic"}}).refresh.active
    assert make_recipe({"refresh": {"steps": [10, 25]}}).refresh.active


def test_a_critic_that_cannot_be_trained_here_is_not_refreshed() -> None:
    critic, refresh = {"model": "rm", "kind": "server"}, {"steps": [4]}
    assert refusal({"critic": critic, "refresh": refresh}) == (
        'my.toml: [refresh] trains the critic again, and one of critic.kind = "server" cannot be; choose "generative", '
        "or leave refresh.steps out"
    )
    assert make_recipe({"critic": critic, "refresh": {"audit": 8}}).critic.kind == "server"
    assert make_recipe({"critic": {**critic, "use": "my:critic"}, "refresh": refresh}).refresh.active


def test_the_recipe_of_a_run_is_read_without_what_is_gone_and_was_empty() -> None:
    sections = {"engine": {"base_url": "", "sleep": True}, "vllm": {"max_model_len": 9}}
    assert make_recipe(sections, strict=False).engine.sleep
    with pytest.raises(ConfigError, match="base_url"):  # it decided something
        make_recipe({"engine": {"base_url": "http://node7:8000"}}, strict=False)


# Files and overrides.


def test_a_file_is_read_and_overrides_win_over_it(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text("[ppo]\nbeta = 0.5\ngamma = 0.25\n[run]\nseed = 3  # a comment\n", encoding="utf-8")
    recipe = load_recipe(path, ["ppo.beta=0.1", "ppo.epochs=2", "ppo.beta=0.2"])
    assert recipe == make_recipe({"ppo": {"beta": 0.2, "gamma": 0.25, "epochs": 2}, "run": {"seed": 3}})


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("ppo.beta=0.1", 0.1),
        ("ppo.beta=1e-3", 0.001),
        ("ppo.beta=1", 1.0),
        ("ppo.beta = 0.1 ", 0.1),
        ("ppo.epochs=7", 7),
        ("rollout.eos_token_ids=[1, 2]", (1, 2)),
        ("rollout.eos_token_ids=[]", ()),
        ("refresh.steps=[10, 25]", (10, 25)),
        ('model.lora_targets=["q_proj", "v_proj"]', ("q_proj", "v_proj")),
        ("model.lora_targets=all-linear", "all-linear"),
        ("model.gradient_checkpointing=false", False),
        ("model.gradient_checkpointing=true", True),
        ("run.out=runs/x", "runs/x"),
        ('run.out="runs/x"', "runs/x"),
        ("run.out='runs/x'", "runs/x"),
        ("run.out = runs/x ", "runs/x"),
        ("run.out=a=b", "a=b"),
        ("run.out='a=b'", "a=b"),
        ("run.out=it's", "it's"),
        ('run.out=say "x"', 'say "x"'),
        ("run.out=a.b/c", "a.b/c"),
        ("run.out=C:\\runs", "C:\\runs"),
        ("run.out='C:\\runs'", "C:\\runs"),
        ("run.out=", ""),
        ('run.out="5"', "5"),
        ("critic.use=my_module:critic", "my_module:critic"),
    ],
)
def test_an_override_is_read_as_toml_or_else_as_text(empty: Path, override: str, value: Any) -> None:
    section, key = override.split("=")[0].strip().split(".")
    found = getattr(getattr(load_recipe(empty, [override]), section), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("override", ["ppo.beta", "beta=0.1", "=0.1", "ppo.=0.1", "", "ppo beta=1"])
def test_an_override_of_another_form_is_refused(empty: Path, override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(empty, [override])
    assert str(caught.value) == f'an override reads "section.key=value", got {override!r}'


def test_an_override_is_checked_like_the_file(empty: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(empty, ["ppo.betta=1"])
    assert str(caught.value).startswith(
        f'{empty}: [ppo] has no key "betta". Did you mean "beta"? Known keys: baseline, beta, '
    )
    with pytest.raises(ConfigError) as caught:
        load_recipe(empty, ["ppo.beta.start=1"])
    assert str(caught.value).startswith(f'{empty}: [ppo] has no key "beta.start". Did you mean "beta"? Known keys: ')
    with pytest.raises(ConfigError) as caught:
        load_recipe(empty, ["ppo.beta=much"])
    assert str(caught.value) == f"{empty}: [ppo] beta = 'much': Input should be a valid number"
    with pytest.raises(ConfigError, match="top_p would sample from something other than the policy"):
        load_recipe(empty, ["rollout.top_p=0.9"])


def test_an_override_of_what_is_no_section_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text("ppo = 3\n")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path, ["ppo.beta=1"])
    assert str(caught.value) == f"{path}: [ppo] is a section of settings, got 3"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe(tmp_path / "none.toml")
    assert (
        str(caught.value)
        == f"{tmp_path / 'none.toml'} is no recipe: cannot read {tmp_path / 'none.toml'}: No such file or directory"
    )
    with pytest.raises(ConfigError) as caught:
        load_recipe(tmp_path)
    assert str(caught.value) == f"{tmp_path} is no recipe: cannot read {tmp_path}: Is a directory"


def test_a_file_that_is_no_toml_is_named_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("[ppo]\nbeta = \n")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    assert str(caught.value) == f"{path} is no recipe: Invalid value (at line 2, column 8)"
    path.write_bytes(b"[run]\nout = '\xff'\n")
    with pytest.raises(ConfigError, match=f"^{path} is no recipe: {path}:2: not UTF-8 .*; save the file as UTF-8$"):
        load_recipe(path)


# Settings.


def test_the_description_is_a_recipe_equal_to_the_defaults() -> None:
    assert make_recipe(tomllib.loads(describe())) == Recipe()


def test_the_description_names_and_explains_every_key() -> None:
    lines = describe().splitlines()
    for section, field in Recipe.model_fields.items():
        assert f"[{section}]  # {type(field.default).__doc__}" in lines
        for key, setting in type(field.default).model_fields.items():
            found = [line for line in lines if line.startswith((f"{key} = ", f"# {key} ="))]
            assert any(setting.description and setting.description.strip() in line for line in found), (section, key)
    task = 'A built-in task, such as "summarization"; it brings prompts, a critic and a metric.'
    assert f"# task =  # {task} [text]" in lines
    gamma = "gamma = 1.0  # Discount γ of later rewards: 1 in the paper; 0.5 is often better for spans."
    assert f"{gamma} [number, 0.0 to 1.0]" in lines


def test_the_description_lists_the_values_of_every_setting() -> None:
    """Every value of a list of choices is accepted and no other text; a number beyond its limit is refused."""
    choices, limits = 0, 0
    for section in Recipe.model_fields:
        for line in describe(section).splitlines()[1:]:
            key = line.removeprefix("# ").partition(" =")[0]
            values = line.rpartition("[")[2].removesuffix("]")
            field = type(Recipe.model_fields[section].default).model_fields[key]
            check = TypeAdapter(field.rebuild_annotation()).validate_python
            for value in re.findall('"([^"]+)"', values):
                assert check(value) == value
                choices += 1
            if '"' in values and "text" not in values:
                with pytest.raises(ValidationError):
                    check("no such choice")
            if (limit := re.search(r"(>|≥) ([\d.]+)", values)) and not values.startswith("list"):
                number = (int if "integer" in values else float)(limit[2])
                refused, accepted = (number, number + 0.5) if limit[1] == ">" else (number - 1, number)
                with pytest.raises(ValidationError):
                    check(refused)
                assert check(accepted) == accepted
                limits += 1
    assert choices > 50
    assert limits > 50


def test_one_section_is_described_and_an_unknown_one_is_refused() -> None:
    assert describe("server") in describe()
    assert describe("server").startswith("[server]  # ")
    assert "[run]" not in describe("server")
    with pytest.raises(ConfigError, match=r'no section "serve"\. Did you mean "server"'):
        describe("serve")


def test_settings_are_frozen() -> None:
    recipe = Recipe()
    with pytest.raises(ValidationError, match="Instance is frozen"):
        recipe.ppo.beta = 0.5  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Instance is frozen"):
        recipe.run = recipe.run  # type: ignore[misc]
    assert hash(make_recipe({"rollout": {"eos_token_ids": [1]}})) != hash(recipe)


def test_the_defaults_are_the_papers() -> None:
    recipe = Recipe()
    assert (recipe.reward.positive, recipe.reward.negative, recipe.reward.unlabelled) == (1.0, -1.0, 0.0)
    assert (recipe.ppo.gamma, recipe.ppo.clip_range, recipe.rollout.temperature) == (1.0, 0.2, 1.0)


@pytest.mark.parametrize(
    ("sections", "idle"),
    [
        ({"model": {"value": "none"}, "optim": {"value_lr": 1e-3}, "ppo": {"vf_coef": 0.2}},
         ["optim.value_lr", "ppo.vf_coef"]),
        ({"optim": {"value_lr": 1e-3}, "ppo": {"vf_coef": 0.2}}, []),
        ({"model": {"lora_alpha": 8}}, ["model.lora_alpha"]),
        ({"model": {"lora_alpha": 8, "lora_r": 4}}, []),
        ({"engine": {"gpu_memory_utilization": 0.5}}, ["engine.gpu_memory_utilization"]),
        ({"engine": {"gpu_memory_utilization": 0.5}, "rollout": {"engine": "vllm"}}, []),
        ({"critic": {"use": "a:b", "model": "m", "kind": "server"}}, ["critic.model", "critic.kind"]),
        ({"critic": {"kind": "server"}}, ["critic.kind"]),
        *(({"critic": {"model": "m", "kind": kind, "votes": 2}}, ["critic.votes"]) for kind in ("server", "probe")),
        ({"critic": {"model": "m", "votes": 2}}, []),
        ({"critic": {"model": "m", "constrain": False, "quote_limits": ["verbatim"]}}, ["critic.quote_limits"]),
        ({"critic": {"model": "m", "quote_limits": ["one_list"]}}, []),
        ({"ppo": {"beta": 0.0, "target_kl": 0.1}}, ["ppo.target_kl"]),
        ({"ppo": {"beta": 0.1, "target_kl": 0.1}}, []),
        ({"ppo": {"teacher_update_rate": 0.5}}, ["ppo.teacher_update_rate"]),
        *(({"ppo": {"teacher_update_rate": 0.5, "credit": kind, "whiten": "none"}, "model": {"value": "none"},
            "reward": {"unlabelled": 0.1}}, idle)
          for kind, idle in (("self_teacher", []), ("gated", ["reward.unlabelled"]))),
        ({"refresh": {"lr": 1e-3, "window": 5}}, ["refresh.window", "refresh.lr"]),
        ({"refresh": {"lr": 1e-3, "steps": [3]}}, []),
        ({"refresh": {"annotator": "a:b", "audit": 4}}, []),
        ({"reward": {"placement": "verdict", "span_mass": "span"}}, ["reward.span_mass"]),
        ({"reward": {"placement": "last_token", "span_mass": "span"}}, []),
        ({"data": {"train": "x.jsonl", "eval_every": 5}}, ["data.eval_every"]),
        ({"data": {"train": "x.jsonl", "eval_every": 5, "held_out": 0.1}}, []),
        ({"data": {"task": "qa", "eval_every": 5}}, []),
        ({"data": {"task": "qa", "eval_every": 5}, "run": {"keep_best": "highest"}}, []),
        ({"data": {"task": "qa"}, "run": {"keep_best": "highest"}}, ["run.keep_best"]),
        ({"data": {"train": "x.jsonl", "eval_every": 5}, "run": {"keep_best": "lowest"}},
         ["data.eval_every", "run.keep_best"]),
    ],
)  # fmt: skip
def test_settings_without_effect_are_known(sections: dict[str, Any], idle: list[str]) -> None:
    assert sorted(idle_settings(make_recipe(sections))) == sorted(idle)


def test_no_shipped_recipe_has_a_setting_without_effect() -> None:
    root = Path(__file__).parents[2] / "recipes"
    found = {
        path.name: list(idle_settings(load_recipe(path)))
        for path in root.rglob("*.toml")
        if "runs" not in tomllib.loads(path.read_text())  # recipes of experiments name other recipes
    }
    assert len(found) >= 8
    assert not {name: idle for name, idle in found.items() if idle}


def test_the_recipe_of_a_run_may_have_sections_of_a_package_that_is_not_here() -> None:
    written = {"ppo": {"beta": 0.1}, "rival": {"method": "dpo"}}  # by a process in which the section was registered
    assert make_recipe(written, strict=False) == make_recipe({"ppo": {"beta": 0.1}})
    assert refusal(written).startswith('my.toml: no section "rival"')


def test_a_recipe_has_few_settings() -> None:
    """A setting counts once, for the class that declares it first."""
    sections = {type(field.default) for field in Recipe.model_fields.values()}
    declared = {
        (
            next(block.__name__ for block in reversed(section.__mro__) if name in getattr(block, "model_fields", {})),
            name,
        )
        for section in sections
        for name in section.model_fields
    }
    # 120, and the discount at the end of a turn: no other setting says how much a turn answers for later ones;
    # whether critics see thoughts: no other setting says what of a response they read; and the number of turns, the
    # chat template and its variables, which nothing else decides; and the weights of severities, raters and categories
    assert len(declared) <= 128


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml")), ids=lambda p: p.name)
def test_every_shipped_recipe_is_read(path: Path) -> None:
    assert load_recipe(path).run.out


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ({"major": -1}, '"major" has the weight -1,'),
        ({"major": float("nan")}, '"major" has the weight nan,'),
        ({"major": float("inf")}, '"major" has the weight inf,'),
        ({"major": True}, '"major" has the weight True,'),
        ({"major": "much"}, "\"major\" has the weight 'much',"),
        ({"Major": 1, "major ": 2}, "two names are the same but for upper and lower case; keep one of them"),
        (3, "Input should be a valid dictionary"),
    ],
)
def test_a_table_of_weights_that_is_none_is_refused(weights: Any, told: str) -> None:
    way_out = " and a weight is a finite number from 0 up: the label of a span says the sign, and 0 takes the mark away"
    ends = way_out if told.endswith(",") else ""
    assert refusal({"reward": {"severity": weights}}) == f"my.toml: [reward] severity = {weights!r}: {told}{ends}"


def test_the_names_of_weights_are_read_in_lower_case() -> None:
    reward = load_recipe(None, ['reward.severity={Major = 1, "in between" = 0.3}']).reward
    assert reward.weights == {"severity": {"major": 1, "in between": 0.3}, "rater": {}, "category": {}}
    assert hash(reward) != hash(make_recipe({}).reward)


# How a critic is asked.


def test_thoughts_are_hidden_by_what_all_prompts_end_with_or_shown() -> None:
    def decode(ids: list[int]) -> str:
        return " ".join(map(str, ids))

    tokenizer: Any = SimpleNamespace(decode=decode)
    critic = make_recipe({}).critic
    assert critic.asking() == {"match": "exact", "prompt_end": ""}
    assert critic.asking(tokenizer, [(1, 2, 8, 9), (8, 9), (3, 8, 9)])["prompt_end"] == "8 9"
    assert critic.asking(tokenizer, [(1, 2), (2, 1)])["prompt_end"] == ""
    assert critic.asking(tokenizer, [tuple(range(99))])["prompt_end"] == decode(list(range(75, 99)))
    shown = make_recipe({"critic": {"thoughts": "show", "match": "normalized"}}).critic
    assert shown.asking(tokenizer, [(1, 2)]) == {"match": "normalized", "prompt_end": None}
