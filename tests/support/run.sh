#!/bin/sh
# Runs test programs, several at once: one line for each as it ends, the whole output of those that fail, and as the last line the sum over all,
# "N passed, N failed, N skipped". On a terminal a line below says how many are done and how long the rest takes, by the mean of those that are done. A program that ends without cmocka's closing lines (a crash, a sanitizer's report) counts as one failure.
# Usage: run.sh [-j JOBS] [-s SUITE] [-b PROGRAMS] [PROGRAM...]
#        run.sh -1 [ISA:]PROGRAM     one program, without the sum
#   JOBS: how many programs run at once; else one
#   PROGRAMS: their cases that tests/support/each_isa.h declares run again, with SMELT_CPU_ISA, under each instruction set of the CPU that smelt ($SMELT)
#       does not choose by itself; sets that the CPU lacks are named, and count as one skipped case for each program
#   SUITE: a command that prints such lines itself; its programs are part of the sum. It fills the processors: until it ends, one program runs beside it
set -u
export OMP_WAIT_POLICY=passive # threads that wait must not spin: machines that test are often busy

report() { printf '%-32s %3d passed, %d failed, %d skipped, %d s\n' "$@"; }

# The number of tests in cmocka's last line that begins with "[  $1".
count() { sed -n "s/^\[  $1 *\] \([0-9][0-9]*\) test(s).*/\1/p" "$output" | tail -n 1 | grep . || echo 0; }

# Several mpiruns must not share a folder for their sessions: the one that ends removes it while another enters it.
run_one() {
    folder=$(mktemp -d) output=$folder/output program=${1#*:} name=${1#*/tests/}
    trap 'rm -rf "$folder"' EXIT
    export OMPI_MCA_orte_tmpdir_base="$folder"
    case $1 in *:*) export SMELT_CPU_ISA="${1%%:*}" SMELT_TEST_CASES="*, each instruction set"; name="$name ($SMELT_CPU_ISA)" ;; esac
    start=$(date +%s)
    "$program" >"$output" 2>&1
    status=$?
    failed=$(count FAILED)
    if [ "$failed" -eq 0 ] && { [ "$status" -ne 0 ] || ! grep -q '^\[  PASSED' "$output"; }; then failed=1; fi
    line=$(report "$name" "$(count PASSED)" "$failed" "$(count SKIPPED)" $(($(date +%s) - start)))
    if [ "$failed" -eq 0 ]; then echo "$line"; else echo "$line" | cat - "$output"; fi
}

if [ "${1:-}" = -1 ]; then
    run_one "$2"
    exit
fi

# The instruction sets, one a line: "generic", "avx2 (used here)", "avx512 (not on this CPU)".
isas() { "$SMELT" --version | sed -n 's/^CPU instruction sets: //p' | sed 's/, /\n/g'; }

jobs=1 suite= again=
while getopts j:s:b: option; do
    case $option in
    j) jobs=$OPTARG ;;
    s) suite=$OPTARG ;;
    b) again=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))

# mawk reads whole blocks from a pipe unless it is told otherwise; others do not know the option.
case $(awk -W version 2>&1) in mawk*) unbuffered="-W interactive" ;; *) unbuffered= ;; esac
total=0
if [ -t 2 ]; then total=$(($# + $(isas | grep -vc ' ') * $(echo $again | wc -w))); fi

{
    beside=$jobs
    if [ -n "$suite" ]; then beside=1; fi
    {
        for program; do echo "$program"; done
        if [ -n "$again" ]; then for isa in $(isas | grep -v ' '); do for program in $again; do echo "$isa:$program"; done; done; fi
    } | xargs -r -d '\n' -P "$beside" -n 1 "$0" -1 &
    if [ -n "$suite" ]; then
        sh -c "$suite" || report "$suite" 0 1 0 0
        while [ "$beside" -lt "$jobs" ] && kill -USR1 $! 2>/dev/null; do beside=$((beside + 1)); done # xargs runs one more at once for each
    fi
    wait
    if [ -n "$again" ]; then isas | sed -n 's/ (not on this CPU)//p' | while read -r isa; do report "under $isa: not on this CPU" 0 0 "$(echo $again | wc -w)" 0; done; fi
} | awk $unbuffered -v jobs="$jobs" -v total="$total" '
    total { printf "\r\033[K" >"/dev/stderr" }
    { print; fflush() }
    total && / skipped, [0-9]+ s$/ { done++; seconds += $(NF - 1) } # those of SUITE name a GPU at the end
    0 < done && done < total {
        left = seconds * (total - done) / done / jobs
        printf "%d of %d programs, about %d min %02d s left", done, total, left / 60, left % 60 >"/dev/stderr"
    }
    match($0, /[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped, [0-9]+ s/) {
        split(substr($0, RSTART), word, " ")
        passed += word[1]; failed += word[3]; skipped += word[5]
    }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || passed + skipped == 0 }'
