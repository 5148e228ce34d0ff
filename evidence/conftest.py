"""What pytest leaves alone here: programs that need their folder or packages of their own."""

collect_ignore = ["benchmarks", "results", "recipes"]
