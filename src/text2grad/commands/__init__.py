"""The commands of `text2grad`, one module each: `add_parser(subparsers)` and `run(args) -> int`."""
