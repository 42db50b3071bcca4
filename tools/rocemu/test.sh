#!/bin/sh
# Runs test programs on the emulated MI300X (gfx942), and those of single operations also on half an MI250X (gfx90a) and an MI355X (gfx950), as many at
# once as there are processors. Prints a line for each as tests/support/run.sh does, whose suite this is, and one for what the programs covered: every
# kernel of the code objects must have run, also with late accesses (ROCEMU_ARRIVAL=late: all are late), and every instruction of theirs for
# gfx942 and gfx950 must be one that the tests of the emulator itself have.
# Usage: test.sh EMULATOR_FOLDER OBJDUMP CODE_OBJECT... PROGRAM...     (EMULATOR_FOLDER/TARGET/*.co are the kernels of the emulator's tests)
set -u
emulator=$(realpath "$1") objdump=$2
shift 2
work=$(mktemp -d) jobs=$(nproc) # which OMP_NUM_THREADS would change
trap 'rm -rf "$work"' EXIT
export LC_ALL=C SMELT_TEST_DEVICE=hip OMP_NUM_THREADS=1 ROCEMU_ARRIVAL="${ROCEMU_ARRIVAL:-both}"
export LD_LIBRARY_PATH="$emulator" ROCEMU_LIBRARY="$emulator/libamdhip64.so" ROCEMU_LEDGER="$work/ledger"

for argument in "$@"; do
    case $argument in
    *.gfx*) echo "$argument" >>"$work/objects" ;;
    */tests/rocemu/test_rocemu_hip) echo "gfx942 $argument" && echo "gfx90a $argument" ;;
    */tests/rocemu/test_rocm_libraries | */tests/rocemu/test_card_report | */tests/train/* | */tests/model/*) echo "gfx942 $argument" ;;
    */tests/rocemu/test_rocemu | */tests/rocemu/test_timing) echo "gfx942 $argument" && echo "gfx950 $argument" ;;
    *) echo "gfx942 $argument" && echo "gfx90a $argument" && echo "gfx950 $argument" ;;
    esac
done >"$work/wanted"
for target in gfx942 gfx90a gfx950; do
    if grep -q "$target\$" "$work/objects"; then grep "^$target" "$work/wanted"; fi
done >"$work/offered"
# Those that take a minute first, or the last of them would run alone.
long='/test_(amax|attention|train_gpu|model_gpu|gpu_gemm_fp8|rocm_libraries|cycles)$'
{
    grep -E "$long" "$work/offered"
    grep -Ev "$long" "$work/offered"
} >"$work/runs"
# shellcheck disable=SC2016  # the inner shell expands these
xargs -P "$jobs" -n 2 sh -c 'ROCEMU_GPU=$1 ROCEMU_KERNELS=$0/$1 tests/support/run.sh -1 "$2" | sed "1s/\$/, $1/"' "$emulator" <"$work/runs"

# Kernels of the code objects that no line of the ledger has, by the checksum of their object.
touch "$work/ledger" "$work/planted"
while read -r object; do
    readelf --wide --dyn-syms "$object" |
        awk -v object="$(cksum <"$object" | cut -d ' ' -f 1)" -v module="$(basename "$object")" 'sub(/\.kd$/, "", $8) { print object, module, $8 }'
done <"$work/objects" | sort -u >"$work/kernels"
awk 'NR == FNR { ran[$1, $2] += $6; next }
    !(($1, $3) in ran) { print "never ran: kernel " $3 " of " $2; next }
    !ran[$1, $3] { print "never ran with late accesses: kernel " $3 " of " $2 }' "$work/ledger" "$work/kernels" >"$work/missing"

# The different instructions of code objects, without the suffixes of encodings.
instructions() {
    while read -r object; do "$objdump" -d --no-show-raw-insn "$object"; done |
        awk '/^\t/ { sub(/(_e32|_e64|_dpp|_sdwa)$/, "", $1); print $1 }' | sort -u
}
grep -v 'gfx90a$' "$work/objects" | instructions >"$work/used"
printf '%s\n' "$emulator"/gfx*/*.co | grep -v '/hazards.co$' | instructions >"$work/tested"
comm -23 "$work/used" "$work/tested" | sed 's/^/no test of the emulator has: /' >"$work/untested"

# The check of `make check` finds the kernels that lack a wait before a barrier or the use of a register.
found=$(tools/check-waits "$objdump" "$emulator"/gfx*/faults.co "$emulator"/gfx*/arrivals.co | sed -n 's/^[a-z]*\.co: \(.*\) at 0x[0-9a-f]*: .*/\1/p' | sort -u | xargs)
planted="lds_read lds_write missing_wait_barrier missing_wait_lds missing_wait_lds_read missing_wait_memory missing_wait_scalar use weak_wait_memory"
[ "$found" = "$planted" ] || echo "tools/check-waits finds \"$found\" in faults.co and arrivals.co, not \"$planted\"" >"$work/planted"

# So does the check of distances, in each kernel but those whose name ends in _away.
for object in "$emulator"/gfx*/hazards.co; do
    tools/check-hazards "$objdump" "$object" | sed -n 's/^hazards.co: \(.*\) at .*/\1/p' | sort -u >"$work/found"
    readelf --wide --dyn-syms "$object" | awk 'sub(/\.kd$/, "", $8) && $8 !~ /_away$/ { print $8 }' | sort |
        comm -3 "$work/found" - | sed "s|^|tools/check-hazards finds too much, or not |; s|\$| of $object|" >>"$work/planted"
done

cat "$work/missing" "$work/untested" "$work/planted"
awk -v kernels="$(wc -l <"$work/kernels")" -v missing="$(wc -l <"$work/missing")" -v used="$(wc -l <"$work/used")" -v untested="$(wc -l <"$work/untested")" \
    -v planted="$(wc -l <"$work/planted")" '
    { executed += $4; seconds += $5 }
    END {
        printf "%d of %d kernels ran, of %d different instructions; %.0f million executed, %.1f million/s on a core\n", kernels - missing, kernels, used,
            executed / 1e6, seconds ? executed / seconds / 1e6 : 0
        failed = (!kernels || missing) + (!used || untested) + planted
        printf "%-32s %3d passed, %d failed, 0 skipped, 0 s\n", "rocemu/coverage", 3 - failed, failed
    }' "$work/ledger"
