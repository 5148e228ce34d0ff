"""The evidence about text2grad: rivals, experiments, analyses, and the pages and records of their results.

It runs from a clone, `python -m evidence`, and imports text2grad; nothing of text2grad imports it.
"""


def register() -> None:
    """Add the tasks, sources, settings and methods of the experiments to those that recipes and commands may name."""
    from evidence import baselines, tasks
    from evidence.analysis.update_log import AnalysisConfig, update_effect
    from evidence.rivals.settings import RivalConfig
    from evidence.tasks.grounded import faithbench
    from evidence.tasks.settings import WorldConfig
    from text2grad.config import register_section
    from text2grad.feedback.sources import SOURCES
    from text2grad.rl import register_instrument

    tasks.register()
    SOURCES["faithbench"] = faithbench.SOURCE
    baselines.register()
    register_section("rival", RivalConfig)
    register_section("world", WorldConfig)
    register_section("analysis", AnalysisConfig)
    register_instrument(update_effect)
