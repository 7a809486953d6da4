# A thin door to CMake. `make demo` and `make test` do all the set-up a fresh Debian 12 machine needs.
JOBS ?= $(shell nproc)

.PHONY: help setup build programs demo test bench asan tsan fuzz format check-format tidy clean

help:            ## this list
	@grep -E '^[a-z -]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

setup:           ## install the packages the build needs (nothing that is there already)
	@tools/setup.sh

build: setup     ## build everything into build/dev
	@cmake --preset dev >/dev/null
	@cmake --build --preset dev -j $(JOBS)
	@ln -sfn dev/bin build/bin && ln -sfn dev/lib build/lib

programs: setup  ## build what people use, without the tests
	@cmake --preset dev >/dev/null
	@cmake --build --preset dev -j $(JOBS) --target nvshare nvshare-scheduler nvshare_interposer \
	  softgpu_cuda softgpu_nvml softgpu-smi gpu-job
	@ln -sfn dev/bin build/bin && ln -sfn dev/lib build/lib

demo: programs   ## show the product at work, in less than a minute
	@tools/demo.sh build/bin/nvshare

test: build      ## run every test
	@ctest --preset dev -j $(JOBS)

bench: build     ## run the benchmarks that have a limit to keep
	@tools/bench.sh build/dev

asan tsan: setup ## run the tests under a sanitizer
	@JOBS=$(JOBS) tools/sanitize.sh $@

fuzz:            ## look for bad inputs (FUZZ_SECONDS each, 60; or the same FUZZ_RUNS each time)
	@tools/setup.sh --ci
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz -j $(JOBS)
	@tools/fuzz.sh build/fuzz $${FUZZ_SECONDS:-60}

format:          ## format the sources
	@git ls-files -co --exclude-standard '*.cpp' '*.h' '*.hpp' | xargs -r clang-format-14 -i

tidy: build      ## look for defects in the core with clang-tidy (slow)
	@git ls-files 'src/base/*.cpp' 'src/core/*.cpp' | grep -v _test | xargs clang-tidy -p build/dev --quiet

check-format:    ## fail when a source file is not formatted
	@git ls-files -co --exclude-standard '*.cpp' '*.h' '*.hpp' | xargs -r clang-format-14 --dry-run --Werror

clean:           ## remove what was built
	@rm -rf build
