from .costs import cost_tables as cost_tables, costs_markdown as costs_markdown, read_costs as read_costs
from .pages import write_results as write_results
from .paper import (
    OURS as OURS,
    PAGE as PAGE,
    merged_ours as merged_ours,
    ours_json as ours_json,
    paper_page as paper_page,
)
