"""Where a real vLLM is, and the environment in which tests run it on a CPU."""

import importlib.util
import os
import sys

from places import ROOT

PYTHON = os.environ.get("TEXT2GRAD_VLLM") or (sys.executable if importlib.util.find_spec("vllm") else "")
ENVIRONMENT = {
    **os.environ,
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join(str(ROOT / name) for name in ("src", "tests/helpers")),
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
