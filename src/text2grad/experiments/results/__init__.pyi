from .costs import cost_tables as cost_tables, costs_markdown as costs_markdown, read_costs as read_costs
from .pages import write_results as write_results
