#!/bin/sh
# Installs the Debian packages given that are missing; silent when nothing is. Needs root or sudo only then.
set -eu
missing=""
for package in "$@"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || status=""
    [ "$status" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || { echo "missing:$missing; install what your system calls them, then run make again" >&2; exit 1; }
as_root=""
[ "$(id -u)" = 0 ] || as_root=sudo
echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
{ $as_root apt-get update && $as_root apt-get install -y --no-install-recommends $missing; } >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
