#!/bin/sh
# Runs test programs one after another and closes with the sum: "N passed, N failed, N skipped". A program that ends without
# cmocka's closing lines (a crash, a sanitizer report) counts as one failure. Usage: run.sh PROGRAM...
set -u
export OMP_WAIT_POLICY=passive # threads that wait should not spin: machines that test are often busy
passed=0 failed=0 skipped=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT
count() { sed -n "s/^\[  $1 *\] \([0-9][0-9]*\) test(s).*/\1/p" "$output" | tail -n 1; }
for program in "$@"; do
    start=$(date +%s)
    "$program" >"$output" 2>&1
    status=$?
    ok=$(count PASSED) bad=$(count FAILED) skip=$(count SKIPPED)
    ok=${ok:-0} bad=${bad:-0} skip=${skip:-0}
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then bad=1; fi
    printf '%-28s %3d passed, %d failed, %d skipped, %d s\n' "$(basename "$program")" "$ok" "$bad" "$skip" $(($(date +%s) - start))
    [ "$bad" -eq 0 ] || cat "$output"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
