from .report import dry_run as dry_run, print_report as print_report
