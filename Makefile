# make setup     install into .venv, and start nothing; then .venv/bin/nccl-runbook diagnose FILE..., or look, env, plan
# make report    run the notebooks and write outputs/latest/index.html  (ARGS="--step 03-fewer-gpus", PYTHON=/path/to/your/python)
# make lab       open a copy of them in JupyterLab, with the form of 00-start filled in
# make test      the default test suite
# make newest    the same on the newest versions that pyproject.toml allows, in .venv-newest; prints them
# make knowledge write again what follows from the code: reference pages and schemas
# make mutants   changes of a judge that no test notices, in minutes a file  (ARGS=gpus/judge_health.py:bus_ids_collide)
# make scorecard  what was right, undecided and wrong, on which hardware: build/scorecard  (ARGS=gym.json: of nccl-runbook dev gym --json)
# make gym       the gym on the CPU, and what was right when it last ran and is not now  (ARGS="--fault stopped"; see notebooks/reference/gym.md)
# make bench     ours against torchrun and nccl-tests in one run, as ratios: build/bench/index.html  (ARGS="launch --nccl-tests DIR")
# make look      build/nccl-look.pyz: one file that looks where nothing can be installed
# make wheelhouse  every wheel for a machine without network  (TARGET_PYTHON=3.12 TARGET_ARCH=aarch64 EXTRAS="lab torch" FOLDER=wheelhouse); there: make report WHEELHOUSE=wheelhouse
# make lock      pin what pyproject.toml allows, with hashes, in .ci/*.txt  (ARGS=--upgrade: the newest versions)
# make clean     remove .venv and caches; outputs/ stays
SHELL := /bin/bash
.PHONY: help setup report lab test newest knowledge mutants scorecard gym bench look wheelhouse lock clean FORCE

# the interpreter of the ranks: from the command line only, as PYTHON in the environment means other things elsewhere
ifeq ($(origin PYTHON),command line)
JOB_PYTHON := --python '$(subst ','\'',$(PYTHON))'
endif

# three workers for the two cores of CI: many tests wait for ranks, deadlines and kernels
PYTEST := pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 1

help:
	@sed -n 's/^# make/make/p' Makefile

setup: .venv/.headless
	@echo "ready: .venv/bin/nccl-runbook --help"

# 0 healthy, 3 broken or degraded, 4 unknown: with each the report was written, which is what make was asked for
report bench: ASKED = $(JOB_PYTHON)
report: .venv/.headless
	@$(if $(JOB_PYTHON),,.ci/setup torch)
	@.venv/bin/nccl-runbook run $(JOB_PYTHON) $(ARGS) || { code=$$?; [[ $$code == 3 || $$code == 4 ]] || exit $$code; \
		echo "make report ends with 0, as the report is written; nccl-runbook run itself ends with $$code" >&2; }

lab: .venv/.lab
	@$(if $(filter -h --help --version,$(ARGS)),,.ci/setup torch || echo "make lab: logs and dumps are read without torch; tests need it" >&2)
	@.venv/bin/python .ci/lab $(ARGS)

test: .venv/.test
	@.venv/bin/python -m $(PYTEST) $(ARGS)

newest:
	@.ci/setup newest
	@.venv-newest/bin/python -m pip --disable-pip-version-check freeze --all --exclude-editable | xargs
	@.venv-newest/bin/python -m $(PYTEST) $(ARGS)

knowledge: .venv/.headless
	@PYTHONPATH=lib .venv/bin/python tests/reference.py

mutants: .venv/.test
	@PYTHONPATH=lib:tests .venv/bin/python tests/mutants.py $(ARGS)

scorecard: .venv/.headless
	@.venv/bin/python tests/scorecard.py $(ARGS)

gym: .venv/.headless
	@.ci/setup torch
	@mkdir -p build
	@.venv/bin/nccl-runbook dev gym --json $(ARGS) > build/gym.json || { code=$$?; [[ $$code == 3 || $$code == 4 ]] || exit $$code; }
	@.venv/bin/python tests/scorecard.py build/gym.json --check

bench: .venv/.headless
	@.ci/setup torch
	@.venv/bin/python tests/bench.py $(JOB_PYTHON) $(ARGS)

look: .venv/.headless
	@.venv/bin/python .ci/look build/nccl-look.pyz

wheelhouse: .venv/.headless
	@.venv/bin/python .ci/wheelhouse '$(subst ','\'',$(or $(FOLDER),wheelhouse))' '$(TARGET_PYTHON)' '$(TARGET_ARCH)' $(EXTRAS)

lock: .venv/.headless
	@.ci/lock $(ARGS)

clean:
	rm -rf .venv .venv.old .venv.lock .venv-newest .venv-lock .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# asked each time, as only .ci/setup sees that the checkout was copied or moved
.venv/.headless: FORCE
	@.ci/setup headless $(ASKED)

.venv/.lab: .venv/.headless .ci/lab.txt
	@.ci/setup lab

.venv/.test: .venv/.headless .ci/lab.txt .ci/test.txt requirements.txt
	@.ci/setup test
