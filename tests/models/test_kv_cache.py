"""Rows that go on in a later turn read what is new alone, and say what they say when they read all."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import CONFIG_MAPPING

from architectures import model_of
from text2grad.models import shared_attention, shared_prefix
from text2grad.models.decoding import decode, steps_are_right
from text2grad.models.kv_cache import Caches, arguments_of, cache_argument, empty_cache
from text2grad.models.randomness import step_uniforms
from text2grad.models.sampling import sample
from tiny_models import CONFIGS, tiny

EOS = (2, 9, 17, 33, 41)
PROMPTS = [(3, 4, 5, 6, 7), (8, 9), (3, 4, 5, 6, 7), (10, 11, 12), (8, 9), (3, 4, 5, 6, 7)]
GIVEN = [(20, 21), tuple(range(20, 38)), (22,)]  # of such lengths that the long one is read apart
BEGUN = [(1, 7, 8), (1, 20)]
GOES_ON = [(1, 7, 8, 30, 30, 30, 40, 41), (1, 20, 31, 31, 42)]  # after `begun`
KEPT = [(1, 7, 8, 30, 30), (1, 20, 31)]  # all but the last id that was said


def talk(
    model: Any, caches: Caches | None, prompts: Sequence[tuple[int, ...]] = PROMPTS, **how: Any
) -> list[list[tuple[int, ...]]]:
    """Return what rows say in each of three turns; some rows do not go on after a turn."""
    rows, said = dict(enumerate(prompts)), list[list[tuple[int, ...]]]()
    for turn in range(3):
        uniforms = step_uniforms(seed=1, step=0, rows=len(prompts), tokens=8, turn=turn)
        if caches is not None:
            caches.groups = [prompts[row] for row in rows]
        turns = sample(model, [*rows.values()], uniforms[[*rows]], eos_ids=EOS, pad_id=0, caches=caches, **how)
        said.append(turns)
        went = zip(rows.items(), turns, strict=True)
        rows = {row: ids + own + GIVEN[(row + turn) % 3] for (row, ids), own in went if (row + turn) % 4 != 3}
    return said


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_says_in_later_turns_what_it_says_when_it_reads_all(family: str) -> None:
    model, caches = tiny(family, **{"n_positions" if family == "gpt2" else "max_position_embeddings": 128}), Caches()
    whole = talk(model, None)
    assert [len(turns) for turns in whole] == [6, 5, 4]  # row 3 ends after turn 0, row 2 after turn 1
    assert len({len(own) for own in whole[0]}) > 1
    assert talk(model, caches) == whole
    assert bool(caches._parts) == (family != "gemma2")  # whose attention has a window


@pytest.mark.parametrize("name", ["lfm2_moe", "gpt_neo"])
def test_models_with_states_or_local_attention_read_each_turn_whole(name: str) -> None:
    model, caches = model_of(CONFIG_MAPPING[name]), Caches()
    assert talk(model, caches) == talk(model, None)
    assert not caches._parts


def test_rows_go_on_from_a_beginning_that_they_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_attention, "LEAST_SHARED", 4)
    model, sharing = tiny("llama", max_position_embeddings=128), shared_prefix.SharingCache
    prompts, shared = [tuple(range(3, 14))] * 4 + [tuple(range(40, 52))] * 3, list[Any]()
    whole = talk(model, None, prompts)
    monkeypatch.setattr(shared_prefix, "SharingCache", lambda *given: shared.append(given) or sharing(*given))
    assert talk(model, Caches(), prompts) == whole
    assert len(shared) == 1  # in the first turn; then each row has its own


def test_only_the_rows_of_one_batch_are_kept() -> None:
    model, caches = tiny("llama", max_position_embeddings=128), Caches()
    assert talk(model, caches, rows_at_once=3) == talk(model, None)
    assert [len(part.read) for part in caches._parts] == [1]  # 4 rows in the last turn: 3 and 1


def test_rows_that_are_read_anew_share_the_beginning_of_their_group() -> None:
    model, caches, read = tiny("llama"), Caches(), list[Any]()
    assert steps_are_right(model, 0)
    model.register_forward_pre_hook(lambda _, args, how: read.append(how["input_ids"].tolist()), with_kwargs=True)
    first, second = (1, 7, 8, 9, 10, 11), (20, 21, 22, 23, 24, 25, 26)
    rows, caches.groups = [(*first, 30), (*first, 31), (*second, 32), (*second, 33, 34)], "aabc"
    sample(model, rows, torch.rand(4, 1), eos_ids=(), pad_id=0, rows_at_once=2, caches=caches)
    assert read[0] == [[*first]]
    assert [len(ids) for ids in read] == [1, 2, 2]  # the beginning, what is behind it, and rows of two groups


def begun(model: Any) -> Caches:
    """Return the caches after a turn of two rows, which say 30 three times and 31 twice."""
    caches = Caches()
    ask(model, BEGUN, caches, [3, 2])
    return caches


def ask(model: Any, rows: Any, caches: Caches | None, tokens: Any) -> Any:
    def choose(logits: Tensor, rows: Tensor, step: int) -> Tensor:
        return rows + 30

    how: dict[str, Any] = {"eos_ids": (), "pad_id": 0, "groups": rows}
    return decode(model, rows, choose, max_new_tokens=tokens, caches=caches, **how)


def test_a_later_turn_reads_the_last_token_and_what_follows_it() -> None:
    model, read = tiny("llama"), list[Any]()
    caches = begun(model)
    model.register_forward_pre_hook(
        lambda _, args, how: read.append((how["input_ids"].tolist(), how["position_ids"].tolist())), with_kwargs=True
    )
    ask(model, GOES_ON, caches, 1)
    # 5 and 3 ids are known, so the second row has two slots of padding, and one before its rest
    assert read == [([[30, 40, 41], [0, 31, 42]], [[5, 6, 7], [2, 3, 4]])]


def test_what_is_kept_are_the_keys_and_values_of_what_was_read() -> None:
    model = tiny("llama")
    for first in (0, 1):
        kept = begun(model).take(model, GOES_ON[first:])
        assert kept is not None
        assert kept[0] == KEPT[first:]
        for row, ids in enumerate(kept[0]):
            alone = empty_cache(model)
            with torch.no_grad():
                model(input_ids=torch.tensor([ids]), use_cache=True, **{cache_argument(arguments_of(model)): alone})
            for layer, own in zip(kept[1].layers, alone.layers, strict=True):
                assert layer.keys.shape[:3:2] == (2 - first, [5, 3][first])
                for states, expected in ((layer.keys, own.keys), (layer.values, own.values)):
                    torch.testing.assert_close(states[row, :, -len(ids) :], expected[0], atol=1e-5, rtol=1e-5)
                    assert not states[row, :, : -len(ids)].any()


@pytest.mark.parametrize(
    "others",
    [GOES_ON[::-1], [GOES_ON[0], (1, 21, 31, 31, 42)], [*GOES_ON, GOES_ON[1]], [GOES_ON[0], GOES_ON[1][:3]]],
    ids=["another order", "another id", "twice the same", "nothing new"],
)
def test_other_rows_are_read_whole_and_nothing_stays(others: Any) -> None:
    model, caches = tiny("llama"), begun(tiny("llama"))
    assert steps_are_right(model, 0)
    assert caches.take(model, others) is None
    assert caches.take(model, GOES_ON) is None
    how: dict[str, Any] = {"max_new_tokens": 6, "eos_ids": (), "pad_id": 0, "groups": others}
    assert decode(model, others, caches=begun(model), **how) == decode(model, others, **how)
