#!/bin/sh
# Runs test programs on the emulated MI300X, and those of single operations also on half an MI250X (gfx90a), as many at once as there are processors, and says what it
# saw: tests, kernels that ran, instructions. Fails when a test fails, when a kernel of the code objects never ran, and when a kernel has an instruction for gfx942
# that no test of the emulator itself has.
# Usage: test.sh EMULATOR_FOLDER OBJDUMP "CODE_OBJECT ..." PROGRAM...     (EMULATOR_FOLDER/*.co are the kernels of the emulator's own tests)
set -u
emulator=$(realpath "$1") objdump=$2 objects=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
begin=$(date +%s)
failed=0

export LC_ALL=C SMELT_TEST_DEVICE=hip OMP_NUM_THREADS=1 work
export LD_LIBRARY_PATH="$emulator" ROCEMU_LIBRARY="$emulator/libamdhip64.so" ROCEMU_KERNELS="$emulator" ROCEMU_LEDGER="$work/ledger"

runs() { # lines of "target program"
    for program in "$@"; do echo "gfx942 $program"; done
    case $objects in *.gfx90a*) for program in "$@"; do
        case $program in */rocemu/* | */train/* | */model/*) ;; *) echo "gfx90a $program" ;; esac
    done ;; esac
}
# Each program through run.sh, whose last line is the sum.
# shellcheck disable=SC2016
one='lines=$work/$(basename "$2").$1; ROCEMU_GPU=$1 tests/support/run.sh "$2" >"$lines"; sed "\$d; 1s/\$/, $1/" "$lines"'
runs "$@" | xargs -P "$(nproc)" -n 2 sh -c "$one" sh
tail -q -n 1 "$work"/*.gfx* | awk '{ passed += $1; failed += $3; skipped += $5 } END { print passed + 0, failed + 0, skipped + 0 }' >"$work/counts"
read -r passed bad skipped <"$work/counts"
[ "$bad" -eq 0 ] && [ "$passed" -gt 0 ] || failed=1

# Kernels, by the checksum of their code object, that no line of the ledger has.
for object in $objects; do
    readelf --wide --dyn-syms "$object" |
        awk -v object="$(cksum <"$object" | cut -d ' ' -f 1)" -v module="$(basename "$object")" 'sub(/\.kd$/, "", $8) { print object, module, $8 }'
done | sort -u >"$work/kernels"
touch "$work/ledger"
awk 'NR == FNR { ran[$1, $2] = 1; next } !(($1, $3) in ran) { print "never ran: kernel " $3 " of " $2 }' "$work/ledger" "$work/kernels" >"$work/missing"
[ -s "$work/kernels" ] && [ ! -s "$work/missing" ] || failed=1
cat "$work/missing"

mnemonics() { for object in "$@"; do case $object in *.gfx90a) continue ;; esac; "$objdump" -d --no-show-raw-insn "$object"; done | awk '/^\t/ { sub(/(_e32|_e64|_dpp|_sdwa)$/, "", $1); print $1 }' | sort -u; }
# shellcheck disable=SC2086
mnemonics $objects >"$work/used"
mnemonics "$emulator"/*.co >"$work/tested"
comm -23 "$work/used" "$work/tested" | sed 's/^/no test of the emulator has: /' >"$work/untested"
[ -s "$work/used" ] && [ ! -s "$work/untested" ] || failed=1
cat "$work/untested"

awk -v kernels="$(wc -l <"$work/kernels")" -v missing="$(wc -l <"$work/missing")" -v mnemonics="$(wc -l <"$work/used")" '
    { instructions += $4; seconds += $5 }
    END { printf "%d of %d kernels ran, of %d different instructions; %.0f million executed, %.1f million/s on a core\n", kernels - missing, kernels, mnemonics,
                 instructions / 1e6, seconds ? instructions / seconds / 1e6 : 0 }' "$work/ledger"
echo "AMD, emulated: $passed passed, $bad failed, $skipped skipped, $(($(date +%s) - begin)) s"
exit $failed
