from .report import analyse_runs as analyse_runs, print_analysis as print_analysis, write_analysis as write_analysis
