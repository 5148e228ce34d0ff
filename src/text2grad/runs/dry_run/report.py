"""The look before a run: refuse bad input, plan the memory, price the critic, and with `judge` measure its signal."""

from typing import NamedTuple

from rich.console import Console

from text2grad.config import Recipe
from text2grad.critics import CachedCritic, LLMCritic
from text2grad.critics.servers import ANSWER_TOKENS
from text2grad.feedback import Critic
from text2grad.reward_models import critic_from_recipe
from text2grad.runs.dry_run.devices import device_named, gigabytes
from text2grad.runs.dry_run.plan import Lengths, Plan, Planner
from text2grad.runs.dry_run.signal import NO_GROUPS, Signal, group_line, measure_signal, number
from text2grad.runs.recipe_run import read_inputs
from text2grad.runs.reports import Table, plain, print_critique, print_figures, print_tables
from text2grad.types import Example

SHOWN = 8
"""Judged responses that are printed."""

PIECES = {
    **dict.fromkeys(("rollout", "critic"), "lower rollout.rows_at_once"),
    **dict.fromkeys(("score", "update"), "lower ppo.micro_batch_tokens"),
    "refresh": "raise refresh.accumulate",
}
"""Phase of the peak → the setting for smaller pieces, which change no result."""


class Report(NamedTuple):
    """What a look before a run tells."""

    planner: Planner  # with recipe, device and prompts
    plan: Plan
    expense: tuple[int, int, float] | None  # of `critic_expense`
    signal: Signal | None = None  # None where the critic was not asked

    @property
    def fits(self) -> bool:
        """True if the peak fits into the device."""
        return self.plan.peak <= self.planner.device.memory


def dry_run(recipe: Recipe, *, device: str | None = None, processes: int = 1, judge: bool = False) -> Report:
    """Look at a run before it begins. Nothing is trained, and nothing is written.

    Args:
        recipe: the settings.
        device: a GPU to plan for, see `device_named`; None plans for this machine.
        processes: number of processes, one GPU each.
        judge: if the run fits, ask the critic about a few responses, with the policy on this machine.

    Raises:
        Text2GradError: what `text2grad train` would refuse, or if the critic fails.
    """
    critic, inputs = None, read_inputs(recipe)
    if not recipe.critic.learned or recipe.critic.kind == "server":
        critic = critic_from_recipe(recipe, task_critic=inputs.task_critic)
    planner = Planner(recipe, device_named(device), processes=processes)
    report = Report(planner, planner.plan(), critic_expense(recipe, critic, planner.lengths))
    return report._replace(signal=measure_signal(recipe)) if judge and report.fits else report


def critic_expense(recipe: Recipe, critic: Critic | None, lengths: Lengths) -> tuple[int, int, float] | None:
    """Return estimated tokens read and written, and US dollars, of an `LLMCritic` in a whole run; None for others.

    A request has the template's instructions (4 characters per token), a prompt of mean length and a response of the
    length limit.
    """
    asked = critic.critic if isinstance(critic, CachedCritic) else critic
    if not isinstance(asked, LLMCritic):  # programs and models in this process read no tokens that cost
        return None
    instructions = len(asked.template.messages(Example("x"), "")[0]["content"]) // 4
    responses = recipe.run.steps * recipe.rollout.batch_size
    read = responses * (instructions + round(lengths.mean) + recipe.rollout.max_new_tokens)
    written = responses * ANSWER_TOKENS
    return read, written, asked.endpoint.cost(read, written)


def print_report(console: Console, report: Report) -> None:
    """Print a report: memory, settings that help, tokens and money; then judged responses, figures and warnings."""
    (phases, (everything, trained)), planner, peak = report.plan, report.planner, report.plan.peak
    device, lengths, recipe = planner.device, planner.lengths, planner.recipe
    title = f"Memory of each of {planner.processes} processes" if planner.processes > 1 else "Memory"
    rows = [
        (role, *(gigabytes(own[role]) if role in own else "" for own in phases.values()))
        for role in dict.fromkeys(role for own in phases.values() for role in own)
    ]
    rows.append(("sum", *(gigabytes(sum(own.values())) for own in phases.values())))
    print_tables(console, [Table(f"{title} on {device.name}", ("", *phases), rows)])
    verdict, style = ("fits into", "green") if report.fits else ("does not fit into", "bold red")
    console.print(
        f"peak {gigabytes(peak)} ({report.plan.peak_phase}) {verdict} {gigabytes(device.memory)}", style=style
    )
    if device.kind == "cpu" and recipe.model.lora_r:
        heap = "with MALLOC_MMAP_THRESHOLD_=1048576 in the environment; without it the heap may grow to twice the peak"
        console.print(heap, highlight=False)
    if not report.fits:
        pieces = PIECES.get(report.plan.peak_phase)
        ways = [*([f"{pieces} (which changes no result)"] if pieces else []), "set model.gradient_checkpointing = true"]
        more = 'model.lora_r = 16, model.dtype = "bfloat16"; or take a smaller model, more memory, or FSDP 2'
        console.print(", ".join([*ways, more]), highlight=False)
    batch = recipe.rollout.batch_size
    lines = [
        ("parameters", f"{everything:,}, trained {trained:,}"),
        ("prompts", f"{lengths.prompts:,} of {lengths.mean:.0f} tokens (longest {lengths.longest})"),
        ("sampled", f"{batch:,} responses, at most {batch * recipe.rollout.max_new_tokens:,} tokens per step"),
    ]
    if report.expense:
        read, written, cost = report.expense
        money = f"${cost:,.2f}" if cost else "no prices: set annotate.prices"
        lines.append(
            ("critic", f"about {read:,} tokens read and {written:,} written in {recipe.run.steps} steps, {money}")
        )
    print_figures(console, lines)
    if report.signal:
        _print_signal(console, recipe, report.signal)


def _print_signal(console: Console, recipe: Recipe, signal: Signal) -> None:
    """Print judged responses, the figures in words, and the warnings."""
    figures = signal.figures
    for rollout, critique in list(zip(signal.rollouts, signal.critiques, strict=True))[:SHOWN]:
        console.print(plain(rollout.example.prompt_text, style="dim"))
        print_critique(console, rollout.response, critique)
    read, written = figures["critic_tokens"]
    cornered = figures.get("delta/cornered_share")
    cost = figures["critic_cost"] * recipe.run.steps * recipe.rollout.batch_size
    lines = [
        ("responses", f"{figures['responses']} ({figures['tokens']:,} tokens)"),
        ("cut by the length limit", f"{figures['truncated_share']:.0%}"),
        ("tokens labelled positive", f"{figures['positive_label_share']:.1%}"),
        ("tokens labelled negative", f"{figures['negative_label_share']:.1%}"),
        ("failed critiques", f"{figures['failed_share']:.0%}"),
        ("critiques without a mark", f"{figures['silent_share']:.0%}"),
        ("quotes not found", f"{figures['unmatched_share']:.0%}"),
        ("labels alike in both answers", f"{figures['label_agreement']:.1%} (κ {number(figures['cohen_kappa'])})"),
        ("reliability of advantages", number(figures["reliability"])),
        ("reward per response", f"{figures['reward_mean']:.3g} (deviation {figures['reward_deviation']:.3g})"),
        ("one number teaches nothing", group_line(figures)),
        ("nothing to move to", NO_GROUPS if cornered is None else f"for {cornered:.0%} of the prompts"),
        ("reward and length", f"r = {figures['reward_length_correlation']:.2f}"),
        ("tokens of the critic", f"{read:,} read, {written:,} written" if read + written else "not counted by it"),
        *([("critic in the whole run", f"${cost:,.2f}")] if cost else []),
    ]
    print_figures(console, lines, title="Signal")
    for warning in signal.warnings:
        console.print(plain(f"warning: {warning}", style="yellow"), soft_wrap=True)
