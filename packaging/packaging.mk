# Installing and packaging: what is installed is listed in packaging/install.sh, and docs/install.md explains the targets.
PREFIX ?= /usr/local
DESTDIR ?=
VERSION := $(shell sed -n 's/^\#define SMELT_VERSION "\(.*\)"/\1/p' src/base/version.h)
DEB := $(BUILD)/smelt_$(VERSION)_$(shell dpkg --print-architecture 2>/dev/null).deb
# A wheel's program holds in itself what other systems may lack. Their symbols stay hidden: a libcurl that is opened at run time brings its own libcrypto.
STATIC_NAMES := gomp yaml jansson xxhash pcre2-8 utf8proc crypto z zstd lzma
STATIC_FILES = $(foreach n,$(STATIC_NAMES),$(shell $(CC) -print-file-name=lib$n.a))
comma := ,

.PHONY: install uninstall dist deb wheel test-packages test-monitoring

install: $(BUILD)/smelt ## install program, man page, completions and documents (PREFIX=/usr/local, DESTDIR=)
	@packaging/install.sh $< "$(DESTDIR)$(PREFIX)"

uninstall: ## remove what install installed
	@packaging/install.sh --remove - "$(DESTDIR)$(PREFIX)"

dist: ## a tarball of the sources of the last commit, which builds by itself
	@test -z "$$(git status --porcelain)" || { echo "commit or remove what git status shows first: the tarball holds what is committed" >&2; exit 1; }
	@mkdir -p $(BUILD)
	@git archive --prefix=smelt-$(VERSION)/ --add-virtual-file="smelt-$(VERSION)/COMMIT:$(COMMIT)" -o $(BUILD)/smelt-$(VERSION).tar.gz HEAD
	@echo "$(BUILD)/smelt-$(VERSION).tar.gz"

deb: $(BUILD)/smelt ## a Debian package
	@tools/install-packages.sh dpkg-dev
	@packaging/deb.sh $< $(VERSION) $(DEB)

wheel: $(BUILD)/wheel/made ## a wheel with the program and the Python package, for Linux systems with a glibc that is not older than this one

$(BUILD)/wheel/made: $(BUILD)/static/smelt packaging/wheel.py packaging/install.sh $(wildcard python/smelt/*) docs/python.md
	@rm -rf $(BUILD)/wheel $(BUILD)/smelt-*.whl
	@packaging/install.sh $< $(BUILD)/wheel
	@strip $(BUILD)/wheel/bin/smelt
	@packaging/wheel.py $(BUILD)/wheel $(VERSION) $(BUILD) $(STATIC_FILES)
	@touch $@

$(BUILD)/static/smelt: $(BUILD)/app/main.o $(LIBRARY)
	@mkdir -p $(@D)
	@echo "  LD $@"
	@$(CC) -rdynamic -o $@ $^ -static-libgcc $(STATIC_NAMES:%=-Wl$(comma)--exclude-libs$(comma)lib%.a) -Wl,-Bstatic $(STATIC_NAMES:%=-l%) -Wl,-Bdynamic -ldl -lm -lpthread

test-packages: packages ## build all packages, install each into a folder of its own, and train with it
	@tools/install-packages.sh dpkg-dev python3-venv
	@$(MAKE) --no-print-directory -s -j$(JOBS) deb wheel
	@tests/packaging/packages.sh $(BUILD) $(DEB)

test-monitoring: packages ## a real Prometheus scrapes a training for SECONDS=30; kill -9 must raise the alert
	@tools/install-packages.sh prometheus libmicrohttpd12
	@$(MAKE) --no-print-directory -s -j$(JOBS) $(BUILD)/smelt
	@tests/packaging/prometheus.sh $(BUILD)/smelt $(or $(SECONDS),30)
