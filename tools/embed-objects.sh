#!/bin/sh
# Prints the C file that embeds GPU code objects: FOLDER/MODULE.TARGET ... become the table gpu_objects. PTX is cut into one object per kernel, since a
# kernel is compiled when it is first used: FOLDER/MODULE.TARGET.KERNEL.ptx. A kernel for Hopper begins with a wait for the one before it, unless it
# waits itself, so that its launch may overlap that one's end (launch.c). A kernel with wgmma that would call a function is refused. Beside it stays MODULE.TARGET.d, which says what the object depends on.
set -e
echo '#include "backend/gpu/driver.h"'
table=''
embed() { # file, module, target, kernel
    symbol=$(echo "object_$2_$3_$4" | tr -c 'a-zA-Z0-9_\n' _)
    printf '__asm__(".section .rodata\\n.balign 4096\\n.global %s\\n%s:\\n.incbin \\"%s\\"\\n.byte 0\\n.text");\n' "$symbol" "$symbol" "$1"
    echo "extern const char $symbol[];"
    table="$table    {\"$2\", \"$4\", \"$3\", $symbol},
"
}
for file in "$@"; do
    base=$(basename "$file")
    module=${base%%.*} target=${base#*.}
    case $target in
    sm_*)
        rm -f "$file".*.ptx
        overlap=''
        [ "$target" = sm_90a ] && overlap='griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n'
        awk -v prefix="$file." -v overlap="$overlap" '
            /^\.visible \.entry/ { name = $3; sub(/\(.*/, "", name); out = prefix name ".ptx"; text = bounds = "" }
            out { text = text $0 "\n" }
            out && $2 == "bounds" { bounds = ".maxntid " $3 "\n.minnctapersm " $4 "\n" ($5 ? ".reqnctapercluster " $5 "\n" : "") }
            !out && !/globl/ { header = header $0 "\n" }
            /^}/ && text !~ /griddepcontrol.wait/ { sub(/\n\{\n/, "\n{\n" overlap, text) }
            /^}/ { sub(/\n\)[^\n]*\n/, "\n)\n" bounds, text); printf "%s%s", header, text > out; close(out); out = "" }' "$file"
        for piece in "$file".*.ptx; do
            [ -e "$piece" ] || continue # a file may have kernels for other targets alone
            if grep -q wgmma "$piece" && grep -nE '(div|rem)[.][su]64|(div|rcp|sqrt)[.]r[nzmp]|call' "$piece" >&2; then
                echo "$piece: these become function calls, before each of which ptxas waits for all wgmma: divide in 32 bits, or with fast_reciprocal" >&2
                exit 1
            fi
            kernel=${piece%.ptx}
            embed "$piece" "$module" "$target" "${kernel##*.}"
        done ;;
    *) embed "$file" "$module" "$target" '' ;;
    esac
done
printf 'const GpuObject gpu_objects[] = {\n%s    {0},\n};\n' "$table"
