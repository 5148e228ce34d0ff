"""Progress of long work: a bar on a terminal, and log lines everywhere else.

    with Progress("train", total=60) as progress:
        progress.advance(reward=0.31, kl=0.02)    # one step is done
    note("held-out F1 0.71 at step 100")          # one line, now

Lines go to the logger "text2grad". The command line writes them with date and time to a standard output that is no
terminal, and obeys `--quiet` and `--verbose`; another program configures logging as it likes. Lines of steps (logger
"text2grad.steps") have the level INFO for the first and the last step and for 20 between them, else DEBUG.
"""

import logging
import sys
import time
from typing import Any, Self

from rich.console import Console

LOG = logging.getLogger("text2grad")
STEPS = logging.getLogger("text2grad.steps")
LINES = 20  # of one phase, beside the first and the last
TOO_EARLY = 1.0  # seconds, for an estimate of the time left
MOST_SECONDS = 60.0  # between two lines of a phase whose steps are shorter
CONSOLE = Console()
"""Where bars and tables appear; what it prints stands above the bars."""


def note(text: str, *, warning: bool = False) -> None:
    """Log one line now; a warning is shown with `--quiet`, too."""
    LOG.log(logging.WARNING if warning else logging.INFO, "%s", text)


def on_terminal() -> bool:
    """Return whether standard output is a terminal, which shows bars in place of lines."""
    return sys.stdout.isatty() and not CONSOLE.is_dumb_terminal


class Progress:
    """The progress of one phase; a context. Several phases may be under way."""

    _display: Any = None  # rich's display of all phases under way, on a terminal
    _displayed = 0

    def __init__(self, phase: str, total: int, *, done: int = 0, unit: str = "step", enabled: bool = True) -> None:
        """Prepare the display of `total` units, of which an earlier process finished `done`.

        Nothing is shown without `enabled`, as in all processes but the main process.
        """
        self.phase, self.total, self.done, self.unit, self.enabled = phase, total, done, unit, enabled
        self._first, self._task, self._started, self._last_line = done, None, 0.0, 0.0

    def __enter__(self) -> Self:
        """Show the phase."""
        self._started = self._last_line = time.monotonic()
        if not self.enabled:
            return self
        if on_terminal() and LOG.level <= logging.INFO:
            if not Progress._displayed:
                Progress._display = _display()
                Progress._display.start()
            Progress._displayed += 1
            self._task = Progress._display.add_task(self.phase, total=self.total, completed=self.done, figures="")
        goes_on = f", {self.done} done before" if self.done else ""
        STEPS.info("%s: %s%s", self.phase, _count(self.total, self.unit), goes_on)
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """End the phase; the bar of the last phase under way stays visible."""
        if not self.enabled:
            return
        if self._task is not None:
            Progress._displayed -= 1
            if not Progress._displayed:
                Progress._display.stop()
            else:
                Progress._display.remove_task(self._task)
            self._task = None
        if error is None and self.done > self._first:
            seconds = time.monotonic() - self._started
            STEPS.info("%s: %s done in %s", self.phase, _count(self.done - self._first, self.unit), duration(seconds))

    def advance(self, units: int = 1, **figures: float | str) -> None:
        """Count units that are finished since the last call, and show figures; `cost` is in US dollars."""
        before, self.done = self.done, self.done + units
        if not self.enabled:
            return
        shown = "  ".join(_figure(name, value) for name, value in figures.items())
        if self._task is not None:
            Progress._display.update(self._task, completed=self.done, figures=shown)
        now, every = time.monotonic(), max(1, self.total // LINES)
        crossed, late = self.done // every > before // every, now - self._last_line >= MOST_SECONDS
        due = before == self._first or self.done == self.total or crossed or late
        self._last_line = now if due else self._last_line
        made, seconds, missing = self.done - self._first, now - self._started, self.total - self.done
        known = made > 0 and missing > 0 and seconds >= TOO_EARLY
        left = f"{duration(seconds / made * missing)} left" if known else ""
        counted = f"{self.phase}: {self.unit} {self.done} of {self.total}"
        line = "  ".join(part for part in (counted, shown, left) if part)
        STEPS.log(logging.INFO if due else logging.DEBUG, "%s", line)


def duration(seconds: float) -> str:
    """Return seconds as "42 s", "3 min 05 s" or "2 h 07 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _display() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    columns = (BarColumn(bar_width=8), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    figures = TextColumn(
        "{task.fields[figures]}", markup=False, style="dim", table_column=Column(no_wrap=True, overflow="ellipsis")
    )
    return Progress(TextColumn("{task.description}", markup=False), *columns, figures, console=CONSOLE)


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def _figure(name: str, value: float | str) -> str:
    if isinstance(value, str):
        return f"{name.replace('_', ' ')} {value}"
    return f"cost ${value:.2f}" if name == "cost" else f"{name.replace('_', ' ')} {value:.3g}"
