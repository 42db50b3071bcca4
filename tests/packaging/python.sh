#!/bin/sh
# Makes a virtual environment with the wheel in it, from PyPI with NumPy alone and with mypy for the types. Exit code 77: PyPI cannot be reached, so that
# nothing was tested. Usage: python.sh WHEEL VENV
set -eu
wheel=$1 venv=$2
python3 -m venv "$venv"
"$venv/bin/pip" --quiet --disable-pip-version-check download --no-deps --dest "$venv/reached" numpy >"$venv/log" 2>&1 || { cat "$venv/log"; exit 77; }
"$venv/bin/pip" --quiet --disable-pip-version-check install --find-links "$venv/reached" "$wheel"
"$venv/bin/pip" list --disable-pip-version-check --format=freeze | grep -v -x -e 'pip==.*' -e 'setuptools==.*' -e 'wheel==.*' >"$venv/installed"
[ "$(cut -d= -f1 "$venv/installed" | sort | tr '\n' ' ')" = 'numpy smelt ' ] || { echo "the wheel needs more than NumPy:"; cat "$venv/installed"; exit 1; }
"$venv/bin/pip" --quiet --disable-pip-version-check install mypy
