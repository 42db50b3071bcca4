#!/bin/sh
# Prints a table of the kernels in AMD code objects, read from the objects themselves: registers, LDS, scratch (spills), and instructions by kind.
# Usage: gpu-report.sh LLVM_FOLDER MODULE.TARGET ...    (LLVM_FOLDER/bin has llvm-readelf and llvm-objdump)
set -e
llvm=$1/bin
shift
echo '| target | kernel | VGPR | AGPR | SGPR | LDS bytes | scratch bytes | spilled | instructions | MFMA | VALU | SALU | LDS | memory |'
echo '|---|---|---|---|---|---|---|---|---|---|---|---|---|---|'
for object in "$@"; do
    base=$(basename "$object")
    target=${base#*.}
    {
        "$llvm/llvm-readelf" --notes "$object" | sed -n 's/^ *- *\.agpr_count/.agpr_count/; s/^ *//; s/^- //; /^\.[a-z_]*:/p' | sed 's/^/N /'
        "$llvm/llvm-objdump" -d --mcpu="$target" "$object" | sed 's/^/D /'
    } | awk -v target="$target" -v module="${base%%.*}" '
        $1 == "N" && $2 == ".agpr_count:" { agpr = $3 }
        $1 == "N" && $2 == ".group_segment_fixed_size:" { lds = $3 }
        $1 == "N" && $2 == ".name:" && $3 ~ /^[A-Za-z_]+[A-Za-z_0-9]*$/ { name = $3 }
        $1 == "N" && $2 == ".private_segment_fixed_size:" { scratch = $3 }
        $1 == "N" && $2 == ".sgpr_count:" { sgpr = $3 }
        $1 == "N" && $2 == ".symbol:" { name = $3; sub(/\.kd$/, "", name) }
        $1 == "N" && $2 == ".vgpr_count:" { vgpr = $3 }
        $1 == "N" && $2 == ".vgpr_spill_count:" { kernels[++count] = name; facts[name] = vgpr " | " agpr " | " sgpr " | " lds " | " scratch " | " $3 }
        $1 == "D" && $3 ~ /^<.*>:$/ { inside = substr($3, 2, length($3) - 3) }
        $1 == "D" && $2 ~ /^(v_|s_|ds_|global_|buffer_|flat_|scratch_)/ {
            all[inside]++
            if ($2 ~ /^v_mfma/) mfma[inside]++
            else if ($2 ~ /^v_/) valu[inside]++
            else if ($2 ~ /^s_/) salu[inside]++
            else if ($2 ~ /^ds_/) shared[inside]++
            else memory[inside]++
        }
        END {
            for (i = 1; i <= count; i++) {
                k = kernels[i]
                printf "| %s | %s.%s | %s | %d | %d | %d | %d | %d | %d |\n", target, module, k, facts[k], all[k], mfma[k], valu[k], salu[k], shared[k], memory[k]
            }
        }'
done
