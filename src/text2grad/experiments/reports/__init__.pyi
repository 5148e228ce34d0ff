from .align_report import (
    FILES as FILES,
    Gathered as Gathered,
    print_report as print_report,
    write_reports as write_reports,
)
from .annotation_tables import Prices as Prices, as_text as as_text
from .html import Table as Table, rollouts_page as rollouts_page
from .policy_evaluation import (
    evaluation_picture as evaluation_picture,
    policy_page as policy_page,
    print_evaluation as print_evaluation,
)
from .run_report import read_run as read_run, write_report as write_report
from .terminal import plain as plain, print_critique as print_critique, print_figures as print_figures
