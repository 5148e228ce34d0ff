"""The trainer's tests with the oldest and the newest version of TRL; 1.15 needs an accelerator. Each is downloaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from places import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.14.2", "1.16.0"])
def test_the_tests_pass_with_this_version_of_trl(tmp_path: Path, version: str) -> None:
    target = tmp_path / "trl"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target), f"trl=={version}"]
    subprocess.run(install, check=True)
    files = [f"tests/integrations/{name}.py" for name in ("test_trl", "test_trl_turns", "test_drop_in", "test_sdpo")]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    code = f"import trl; assert trl.__version__ == {version!r}, trl.__version__"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(target), str(ROOT / "src")])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    done = subprocess.run(
        [*tests, "-k", "not untested"], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert "failed" not in done.stdout
