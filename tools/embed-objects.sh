#!/bin/sh
# Prints the C file that embeds GPU code objects: FOLDER/MODULE.TARGET ... become the table gpu_objects. A zero byte ends each, which PTX needs.
set -e
echo '#include "device/internal.h"'
for file in "$@"; do
    name=$(basename "$file" | tr . _)
    printf '__asm__(".section .rodata\\n.balign 4096\\n.global object_%s\\nobject_%s:\\n.incbin \\"%s\\"\\n.byte 0\\n.text");\n' "$name" "$name" "$file"
    echo "extern const char object_$name[];"
done
echo 'const GpuObject gpu_objects[] = {'
for file in "$@"; do
    base=$(basename "$file")
    echo "    {\"${base%%.*}\", \"${base#*.}\", object_$(echo "$base" | tr . _)},"
done
echo '    {0},'
echo '};'
