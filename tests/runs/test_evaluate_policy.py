"""Sampled responses outside of a run."""

import small_run
from text2grad.config import RolloutConfig
from text2grad.runs.evaluate_policy import sample_rollouts


def test_a_response_that_is_begun_goes_on_as_the_policy_would_and_ends_at_the_same_limit() -> None:
    tokenizer, model = small_run.tokenizer_and_model()
    settings = RolloutConfig(max_new_tokens=5, temperature=1e-5)
    examples = small_run.EXAMPLES[:3]

    def ids(begun: list[tuple[int, ...]] | None = None) -> list[tuple[int, ...]]:
        sampled = sample_rollouts(model, tokenizer, examples, settings, prompt_format="plain", seed=0, begun=begun)
        assert [rollout.prompt_ids for rollout in sampled] == prompts
        return [rollout.response_ids for rollout in sampled]

    prompts = [tuple(tokenizer(example.prompt_text).input_ids) for example in examples]
    whole = ids()
    assert ids([row[:2] for row in whole]) == whole, "the likeliest response goes on in the likeliest way"
    other = [(tokenizer(" cat").input_ids[0],)] * 3
    assert all(row[:1] == other[0] and len(row) <= 5 for row in ids(other))
    assert ids(other) != whole
