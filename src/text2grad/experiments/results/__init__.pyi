from .pages import write_results as write_results
