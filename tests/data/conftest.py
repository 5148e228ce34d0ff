"""What lies here is data, and what made it: nothing to collect."""

collect_ignore_glob = ["*"]
