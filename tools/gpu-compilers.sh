#!/bin/sh
# Chooses who compiles GPU kernels: prints TARGET=COMPILER for each target, the first CANDIDATE that makes code for it of an empty kernel, else the clang
# of PyPI's ziglang, which knows more targets than most systems' clang. Its version is pinned; it comes into build/tools. Where nothing builds for a
# target, no word is printed for it, but why on stderr.    Usage: gpu-compilers.sh "TARGET..." CANDIDATE...
set -u
version=0.17.1
folder=build/tools/ziglang-$version
targets=$1
shift

builds() {
    case $2 in
    gfx*) set -- "$1" -target amdgcn-amd-amdhsa -mcpu="$2" -o /dev/null ;; # links, so that a clang without lld is found out
    *) set -- "$1" -target nvptx64-nvidia-cuda -march="$2" --cuda-feature=+ptx83 -S -o - ;;
    esac
    echo 'void kernel(void) {}' | "$@" -nogpulib -x c - >/dev/null 2>&1
}

choose() {
    for compiler in $candidates; do
        if builds "$compiler" "$target"; then echo "$target=$compiler" && return 0; fi
    done
    return 1
}

# Two programs are made of the package: clang, which finds its headers, and the linker that clang calls.
install_zig() {
    [ -x build/tools/bin/pip ] || python3 -m venv build/tools >/dev/null 2>&1 || { why="and PyPI's ziglang needs python3 with its module venv (python3-venv)" && return 1; }
    build/tools/bin/python3 -m pip --quiet --disable-pip-version-check --retries 1 --timeout 15 install "ziglang==$version" >/dev/null 2>&1 ||
        { why="and PyPI's ziglang $version cannot be installed: see build/tools/bin/pip install ziglang==$version" && return 1; }
    mkdir -p "$folder"
    # shellcheck disable=SC2016  # the programs expand these
    for program in 'ld.lld:"$package/zig" ld.lld' 'clang:"$package/zig" clang -isystem "$package/lib/include" -Qunused-arguments -B "$here"'; do
        printf '#!/bin/sh\nhere=$(dirname "$0")\npackage=$(echo "$here"/../lib/python3*/site-packages/ziglang)\nexec %s "$@"\n' "${program#*:}" >"$folder/new.$$"
        chmod +x "$folder/new.$$"
        mv "$folder/new.$$" "$folder/${program%%:*}"
    done
}

candidates=$*
why="nor does that of PyPI's ziglang $version"
for target in $targets; do
    choose && continue
    [ -x "$folder/clang" ] || install_zig
    if builds "$folder/clang" "$target"; then echo "$target=$folder/clang"
    else echo "no clang of this system builds for $target (tried: $candidates), $why" >&2; fi
done
