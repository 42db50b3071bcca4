#!/bin/sh
# tools/fuzz.sh BUILD MINUTES NAME...: fuzzes each of the entries for so long, beginning with tests/corpus. What breaks one is
# kept in BUILD/broken. What is found on the way is kept in BUILD/corpus, and at the end that of it which reaches new branches
# is added to tests/corpus under the first digits of its SHA-1.
set -eu
build=$1 minutes=$2
shift 2
broken=""
mkdir -p "$build/broken"
for name in "$@"; do
    new=$build/corpus/$name kept=tests/corpus/$name
    mkdir -p "$new" "$kept"
    echo "fuzzing $name for $minutes minutes"
    "$build/fuzzers/$name" -max_total_time=$((minutes * 60)) -timeout=30 -rss_limit_mb=4096 -verbosity=0 -print_final_stats=1 \
        -artifact_prefix="$build/broken/$name-" "$new" "$kept" >"$build/$name.log" 2>&1 || broken="$broken $name"
    grep -E "number_of_executed_units|SUMMARY|ERROR: " "$build/$name.log" || true
    "$build/fuzzers/$name" -merge=1 -rss_limit_mb=4096 "$kept" "$new" >"$build/$name.merge.log" 2>&1 || broken="$broken $name"
    find "$kept" -type f -name '????????????????????????????????????????' | while read -r file; do
        mv "$file" "$kept/$(basename "$file" | cut -c 1-12)"
    done
done
[ -z "$broken" ] || { echo "broken:$broken; the inputs are in $build/broken, the reports in $build/*.log" >&2; exit 1; }
