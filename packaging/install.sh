#!/bin/sh
# Installs the program and what belongs to it below a folder, or with --remove takes the same files away. Usage: install.sh [--remove] SMELT PREFIX
set -eu
remove=''
[ "$1" != --remove ] || { remove=yes; shift; }
smelt=$1 prefix=$2
# place MODE NAME COMMAND...: the output of the command becomes the file PREFIX/NAME.
place() {
    mode=$1 file=$prefix/$2
    shift 2
    if [ "$remove" ]; then
        rm -f "$file"
    else
        mkdir -p "$(dirname "$file")"
        "$@" >"$file.partial"
        chmod "$mode" "$file.partial"
        mv "$file.partial" "$file"
    fi
}
place 755 bin/smelt cat "$smelt"
place 644 share/man/man1/smelt.1 "$smelt" manual man
place 644 share/bash-completion/completions/smelt "$smelt" manual bash
place 644 share/zsh/site-functions/_smelt "$smelt" manual zsh
place 644 share/fish/vendor_completions.d/smelt.fish "$smelt" manual fish
for file in README.md CONTRIBUTING.md LICENSE docs/*.* docs/screenshots/* bench/README.md bench/results/*.md; do place 644 "share/doc/smelt/$file" cat "$file"; done
for file in configs/*; do place 644 "share/smelt/$file" cat "$file"; done
for folder in doc/smelt/docs/screenshots doc/smelt/docs doc/smelt/bench/results doc/smelt/bench doc/smelt smelt/configs smelt; do
    [ ! "$remove" ] || rmdir "$prefix/share/$folder" 2>/dev/null || :
done
