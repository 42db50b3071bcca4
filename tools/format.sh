#!/bin/sh
# Formats every C file of the repository by .clang-format, or with --check lists those that differ and fails. The version is pinned, since another one
# formats differently: it comes from PyPI into build/tools.    Usage: format.sh [--check]
set -eu
version=23.1.5
tool=build/tools/bin/clang-format
if ! "$tool" --version 2>/dev/null | grep -q " $version"; then
    python3 -m venv build/tools
    build/tools/bin/python3 -m pip --quiet install "clang-format==$version"
fi
if [ "${1:-}" = --check ]; then
    git ls-files '*.c' '*.h' | xargs "$tool" --dry-run --Werror
    echo "format: $(git ls-files '*.c' '*.h' | wc -l) files are as .clang-format has them"
else
    git ls-files '*.c' '*.h' | xargs "$tool" -i
fi
