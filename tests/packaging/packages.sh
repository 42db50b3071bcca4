#!/bin/sh
# The packages that `make deb wheel` built, each put into a folder of its own, with an environment that knows nothing of this one: every program trains,
# generates and explains itself, and needs no library that is not there. Then the tarball of `make dist`, built anew (for one GPU, to save time); only where
# all is committed. Usage: packages.sh BUILD DEB
set -eu
build=$1 deb=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAILED: $1" >&2; exit 1; }
say() { printf '%4d s  %s\n' "$(($(date +%s) - started))" "$1"; }
started=$(date +%s)
cat docs/*.md >"$folder/text"

# trains NAME BIN: the program in the folder BIN, by its name alone.
trains() {
    (
        cd "$folder"
        alone="env -i PATH=$2:/usr/bin:/bin HOME=$folder OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive"
        $alone smelt train data.train=text device=cpu steps=3 batch.tokens=4096 run="runs/$1" >"$1.log" 2>&1 || { cat "$1.log"; fail "$1: train"; }
        $alone smelt generate "runs/$1" The tokens=5 device=cpu >"$1.text" 2>"$1.log" || { cat "$1.log"; fail "$1: generate"; }
        [ -s "$1.text" ] || fail "$1: generate printed nothing"
        $alone smelt --version
    ) || exit 1
}

make --no-print-directory -s install BUILD="$build" DESTDIR="$folder/root" PREFIX=/opt/smelt
trains install "$folder/root/opt/smelt/bin"
man -l "$folder/root/opt/smelt/share/man/man1/smelt.1" 2>/dev/null | grep -q 'optimizer.lr=1e-3' || fail "the manual page lacks optimizer.lr"
for config in "$folder"/root/opt/smelt/share/smelt/configs/*.yaml; do "$build/smelt" size "$config" >/dev/null || [ $? = 1 ] || fail "$config"; done
(cd "$folder/root/opt/smelt/share/doc/smelt" && grep -o ']([^):#]*)' README.md docs/*.md | while IFS=: read -r file link; do
    link=${link#](}
    [ -e "$(dirname "$file")/${link%)}" ] || echo "$file: $link"
done) >"$folder/links"
[ ! -s "$folder/links" ] || fail "installed documents link what is not there: $(cat "$folder/links")"
make --no-print-directory -s uninstall BUILD="$build" DESTDIR="$folder/root" PREFIX=/opt/smelt
[ -z "$(find "$folder/root" -type f)" ] || fail "uninstall left $(find "$folder/root" -type f)"
say "make install and uninstall"

dpkg -x "$deb" "$folder/deb"
trains deb "$folder/deb/usr/bin"
for library in libgomp1 libssl3 libyaml-0-2; do dpkg --field "$deb" Depends | grep -q "$library" || fail "the package does not depend on $library"; done
say "$deb"

wheel=$(ls "$build"/smelt-*.whl)
case $wheel,$(cat /etc/debian_version) in *manylinux_2_34*,*) ;; *,12.*) fail "$wheel needs a newer glibc than 2.34" ;; esac
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --no-index --no-deps --disable-pip-version-check "$wheel" || fail "pip install $wheel"
trains wheel "$folder/venv/bin"
ldd "$folder/venv/bin/smelt" | grep -v -E 'linux-vdso|lib(c|m|dl|pthread)\.so|ld-linux' && fail "the wheel's program needs these libraries"
for package in libgcc libssl-dev libyaml-dev libjansson-dev libxxhash-dev libpcre2-dev libutf8proc-dev; do
    ls "$folder"/venv/lib/python*/site-packages/smelt-*.dist-info/licenses | grep -q "$package" || fail "the wheel lacks the license of $package"
done
# A libcrypto in the program must not be taken by a library that is opened at run time and brings another one.
nm -D --defined-only "$folder/venv/bin/smelt" | grep -q ' EVP_' && fail "the wheel's program shows its libcrypto to others"
"$folder/venv/bin/pip" uninstall --quiet --yes smelt
[ ! -e "$folder/venv/bin/smelt" ] || fail "pip uninstall left the program"
say "$wheel"

if [ -z "$(git status --porcelain)" ]; then
    make --no-print-directory -s dist BUILD="$build"
    tar -C "$folder" -xf "$(ls "$build"/smelt-*.tar.gz)"
    make --no-print-directory -s -C "$folder"/smelt-* -j"$(nproc)" GPU_TARGETS=sm_90a ${CC:+CC="$CC"} ${GPU_CC:+GPU_CC="$GPU_CC"} >"$folder/dist.log" 2>&1 ||
        { tail "$folder/dist.log"; fail "the tarball does not build"; }
    trains dist "$(echo "$folder"/smelt-*/build)"
    "$folder"/smelt-*/build/smelt --version | grep -q "$(git rev-parse --short=12 HEAD)" || fail "the tarball's program does not name its commit"
    say "make dist"
else
    say "skipped: make dist, since not all is committed"
fi
say "passed"
