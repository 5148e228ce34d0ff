"""The numbers of a run in one sentence: whether words will help on its task, and why; and where the formula fails."""

from collections.abc import Mapping
from math import log
from typing import Any

MUCH, SOME, LITTLE = 10.0, 3.0, 1.5
WRONG_BY = 1.5  # factor between measured and predicted ratio that is told
DIFFERS = 1.3
FAR_REACH = 0.9
CLOSER = 2 / 3  # of the error of the prediction is left, where the own reward is a cause


def verdict(found: Mapping[str, Any]) -> str:
    """Return one sentence (and another where the formula fails) about a run; see `run_analysis`."""
    ratio, length = found["ratio"]["value"], found["length"]["mean"]
    if found["labelled_share"] == 0:
        return "Nothing can be said: the critic labelled no token."
    facts = (
        f"a response has {length:.0f} tokens, {found['spans_per_response']:.1f} spans and "
        f"{found['faults_per_response']:.1f} faults, and {found['labelled_share']:.0%} of the tokens are labelled"
    )
    if ratio is None:
        return f"Nothing can be said: one of the signals does not tell labels apart at all ({facts})."
    factor = found["settings"]["gamma"] * found["settings"]["lam"]
    if ratio < LITTLE:
        reach = (
            f", and with γλ = {factor:.2g} an advantage also holds the rewards of all later tokens; --gamma 0.5 tells "
            "what spans with a shorter reach would give"
            if factor > FAR_REACH
            else ""
        )
        clearly = f"spans tell a token's label {ratio:.1f} times as clearly as one number"
        return f"Words will hardly help: {clearly}; {facts}{reach}."
    strength = "should help much" if ratio >= MUCH else "should help" if ratio >= SOME else "may help a little"
    number = found["signals"]["number"]["signal_to_noise"]
    needed = f"; with one number, labels explain {number / (1 + number):.0%} of the variance of the advantages"
    return (
        f"Words {strength}: an advantage from spans tells its token's label {_times(ratio)} times as clearly as one "
        f"number per response, because {facts}{needed}.{_failure(found)}"
    )


def _failure(found: Mapping[str, Any]) -> str:
    """Return a sentence about a prediction that is far off, with the assumptions that the rollouts break."""
    ratio, predicted = found["ratio"]["value"], found["predicted"]
    if predicted is None or 1 / WRONG_BY < ratio / predicted < WRONG_BY:
        return ""
    reasons = []
    measured, expected = found["number_variance"]["measured"], found["number_variance"]["predicted"]
    if measured is not None and measured > DIFFERS * expected:
        reasons.append(
            f"the number varies {measured / expected:.1f} times as much as independent spans would make it (whole "
            "responses are good or poor)"
        )
    if measured is not None and measured < expected / DIFFERS:
        reasons.append(
            f"the number varies only {measured / expected:.2f} times as much as independent spans would make it"
        )
    by_reward = found["ratio_by_reward"]
    if by_reward and abs(log(by_reward / predicted)) < CLOSER * abs(log(ratio / predicted)):
        reasons.append(
            f"labels tell of other rewards, too (unlabelled tokens stand near faults, for example): by the token's own "
            f"reward alone the ratio is {_times(by_reward)}"
        )
    share = found["position_share"]
    if share is not None and share > 1 - 1 / DIFFERS:
        reasons.append(
            f"the place in the response explains {share:.0%} of the variance of the spans' advantages, which a value "
            "function or a smaller γ removes"
        )
    known = "; ".join(reasons) or "labels are rare, not symmetric, or cluster in another way than spans of one length"
    return f" The formula predicts {_times(predicted)}, which is far off: {known}."


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= MUCH else f"{ratio:.1f}"
