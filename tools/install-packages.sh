#!/bin/sh
# Installs the Debian packages given that are missing; silent when nothing is. NAME? is one that is done without where the system's archive has none.
# Where it cannot install (no apt, neither root nor sudo, a package that the archive does not have) it names all that is missing, before it changes
# anything. On systems without dpkg it looks for what it knows of the packages, their headers and programs, and names them as Fedora and RHEL do.
set -eu

# Debian's name, what a compiler includes or a shell runs, Fedora's name.
known='
gcc                   command gcc                gcc
python3               command python3            python3
python3-venv          module  venv               python3
clang-19              command clang-19           clang
lld-19                command ld.lld             lld
libc6-dev             header  stdlib.h           glibc-devel
libssl-dev            header  openssl/evp.h      openssl-devel
libcurl4-openssl-dev  header  curl/curl.h        libcurl-devel
libyaml-dev           header  yaml.h             libyaml-devel
libjansson-dev        header  jansson.h          jansson-devel
libmicrohttpd-dev     header  microhttpd.h       libmicrohttpd-devel
libxxhash-dev         header  xxhash.h           xxhash-devel
libpcre2-dev          header  pcre2.h            pcre2-devel
libutf8proc-dev       header  utf8proc.h         utf8proc-devel
zlib1g-dev            header  zlib.h             zlib-devel
libzstd-dev           header  zstd.h             libzstd-devel
liblzma-dev           header  lzma.h             xz-devel
libcmocka-dev         header  cmocka.h           libcmocka-devel
openmpi-bin           command mpirun             openmpi
man-db                command man                man-db
'

is_there() {
    case $1 in
    command) command -v "$2" >/dev/null ;;
    module) python3 -c "import $2" 2>/dev/null ;;
    header) printf '#define PCRE2_CODE_UNIT_WIDTH 8\n#include <stddef.h>\n#include <stdint.h>\n#include <%s>\n' "$2" | ${CC:-cc} -E - >/dev/null 2>&1 ;;
    esac
}

# Without dpkg: names as Fedora has them; packages that the table does not have are passed over.
check_by_use() {
    missing=""
    for package in "$@"; do
        case $package in *\?) continue ;; esac
        line=$(echo "$known" | awk -v name="$package" '$1 == name { print $2, $3, $4 }')
        # shellcheck disable=SC2086
        set -- $line
        if [ -n "$line" ] && ! is_there "$1" "$2"; then missing="$missing $3"; fi
    done
    [ -z "$missing" ] || { echo "missing:$missing; install them (dnf install$missing), or what your system calls them, then run make again" >&2; exit 1; }
    exit 0
}

command -v dpkg-query >/dev/null || check_by_use "$@"
missing="" optional=""
for package in "$@"; do
    name=${package%\?}
    status=$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) || status=""
    [ "$status" = installed ] && continue
    if [ "$name" = "$package" ]; then missing="$missing $name"; else optional="$optional $name"; fi
done
has() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; }
wanted=""
for package in $optional; do if has "$package"; then wanted="$wanted $package"; fi; done
[ -n "$missing$wanted" ] || exit 0

as_root=""
if [ "$(id -u)" != 0 ]; then as_root="sudo"; fi
if ! command -v apt-get >/dev/null || { [ -n "$as_root" ] && ! command -v sudo >/dev/null; }; then
    [ -n "$missing" ] || exit 0
    echo "missing:$missing; as root: apt-get install$missing; then run make again" >&2
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update >"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "apt-get update failed; missing:$missing" >&2; exit 1; }
unknown=""
for package in $missing; do has "$package" || unknown="$unknown $package"; done
for package in $optional; do if has "$package"; then missing="$missing $package"; fi; done
[ -z "$unknown" ] || { echo "the archive of this system has no$unknown; nothing was installed of:$missing" >&2; exit 1; }
[ -n "$missing" ] || exit 0
echo "installing:$missing"
# shellcheck disable=SC2086
$as_root apt-get install -y --no-install-recommends $missing >"$log" 2>&1 || { tail -n 20 "$log" >&2; exit 1; }
