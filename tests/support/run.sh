#!/bin/sh
# Runs test programs, several at once: one line for each, the whole output of those that fail, and as the last line the sum over all,
# "N passed, N failed, N skipped". A program that ends without cmocka's closing lines (a crash, a sanitizer's report) counts as one failure.
# Usage: run.sh [-j JOBS] [-s SUITE] [PROGRAM...]
#        run.sh -1 PROGRAM           one program, without the sum
#   JOBS: how many programs run at once; else one
#   SUITE: a command that prints such lines itself; its programs are part of the sum. It fills the processors: until it ends, one program runs beside it
set -u
export OMP_WAIT_POLICY=passive # threads that wait must not spin: machines that test are often busy

report() { printf '%-32s %3d passed, %d failed, %d skipped, %d s\n' "$@"; }

# The number of tests in cmocka's last line that begins with "[  $1".
count() { sed -n "s/^\[  $1 *\] \([0-9][0-9]*\) test(s).*/\1/p" "$output" | tail -n 1 | grep . || echo 0; }

run_one() {
    output=$(mktemp)
    trap 'rm -f "$output"' EXIT
    start=$(date +%s)
    "$1" >"$output" 2>&1
    status=$?
    failed=$(count FAILED)
    if [ "$failed" -eq 0 ] && { [ "$status" -ne 0 ] || ! grep -q '^\[  PASSED' "$output"; }; then failed=1; fi
    line=$(report "${1#*/tests/}" "$(count PASSED)" "$failed" "$(count SKIPPED)" $(($(date +%s) - start)))
    if [ "$failed" -eq 0 ]; then echo "$line"; else echo "$line" | cat - "$output"; fi
}

if [ "${1:-}" = -1 ]; then
    run_one "$2"
    exit
fi

jobs=1 suite=
while getopts j:s: option; do
    case $option in
    j) jobs=$OPTARG ;;
    s) suite=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))

{
    beside=$jobs
    if [ -n "$suite" ]; then beside=1; fi
    for program; do echo "$program"; done | xargs -r -d '\n' -P "$beside" -n 1 "$0" -1 &
    if [ -n "$suite" ]; then
        sh -c "$suite" || report "$suite" 0 1 0 0
        while [ "$beside" -lt "$jobs" ] && kill -USR1 $! 2>/dev/null; do beside=$((beside + 1)); done # xargs runs one more at once for each
    fi
    wait
} | awk '
    { print; fflush() }
    match($0, /[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped, [0-9]+ s/) {
        split(substr($0, RSTART), word, " ")
        passed += word[1]; failed += word[3]; skipped += word[5]
    }
    END { printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 || passed + skipped == 0 }'
