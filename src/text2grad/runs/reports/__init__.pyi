from .html import Table as Table, rollouts_page as rollouts_page
from .policy_evaluation import policy_page as policy_page, print_evaluation as print_evaluation
from .run_report import Run as Run, change_table as change_table, write_page as write_page
from .terminal import (
    as_text as as_text,
    plain as plain,
    print_critique as print_critique,
    print_figures as print_figures,
    print_response as print_response,
    print_tables as print_tables,
)
