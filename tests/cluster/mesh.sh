#!/bin/bash
# Real ranks in a mixed layout on one machine: a tiny ZAYA1 on dp 4 x tp 2 x pp 2 x cp 2 x ep 2, 64 processes. Trains undisturbed, then again with one rank
# killed, whose run must resume and end with the undisturbed run's weights. Prints how long the ranks take to start and what memory the mesh takes.
# Usage: mesh.sh [SMELT [dp tp pp cp ep]]
set -u
smelt=${1:-build/smelt} dp=${2:-4} tp=${3:-2} pp=${4:-2} cp=${5:-2} ep=${6:-2}
. "$(dirname "$0")/common.sh"
ranks=$((dp * tp * pp * cp * ep)) steps=8
[ "$(awk '/MemAvailable/ {print int($2 / 1024)}' /proc/meminfo)" -gt $((ranks * 20)) ] || skip "$ranks ranks need $((ranks * 20)) MiB"
settings="data.train=$folder/text model.family=zaya model.width=32 model.layers=2 model.heads=4 model.kv_heads=2 model.head_dim=8 model.ffn=32
    model.experts=4 model.router_width=8 data.length=32 batch.sequences=1 batch.tokens=$((32 * dp * ep * 2)) optimizer.lr=1e-3 precision=fp32 threads=1
    device=cpu tensorboard=false checkpoint.every=4 eval.sample_tokens=0 steps=$steps
    layout.dp=$dp layout.tp=$tp layout.pp=$pp layout.cp=$cp layout.ep=$ep"
launch() { "$smelt" launch -n "$ranks" self_test=false -- train $settings run="$folder/$1"; }
# mine RUN [RANK]: the processes of a run's ranks, or of one.
mine() { pgrep -f "run=$folder/$1" | while read -r id; do tr '\0' '\n' <"/proc/$id/environ" 2>/dev/null | grep -q "^RANK=${2:-}${2:+\$}" && echo "$id"; done; }
# memory of all ranks of a run: what is theirs, and their shares of what they have together.
memory() { mine "$1" | while read -r id; do cat "/proc/$id/smaps_rollup" 2>/dev/null; done | awk '/^Pss:/ {sum += $2} END {printf "%d MiB", sum / 1024}'; }

say "$ranks ranks: dp $dp x tp $tp x pp $pp x cp $cp x ep $ep"
launch calm >"$folder/calm.log" 2>&1 & first=$!
await 600 "the first step" reached "$folder/calm" 1
say "the first step is done"
rank=$(mine calm 1 | head -n 1)
[ -n "$rank" ] && say "rank 1: $(awk '/VmHWM|RssAnon/ {printf "%s %d MiB  ", $1, $2 / 1024}' "/proc/$rank/status") $(ls "/proc/$rank/fd" | wc -l) open files"
say "all ranks: $(memory calm), and $(awk '/^TCP:/ {printf "%d ends of connections with %d MiB of the kernel", $3, $11 / 256}' /proc/net/sockstat)"
ended $first 0 "the undisturbed run"
say "undisturbed run: $steps steps"

launch killed >"$folder/killed.log" 2>&1 & second=$!
await 600 "the checkpoint of step 4" test -e "$folder/killed/checkpoints/step-00000004/manifest.json"
kill -9 "$(mine killed $((ranks / 2 + 1)) | head -n 1)" || fail "no rank to kill"
say "rank $((ranks / 2 + 1)) killed"
ended $second 0 "the run that lost a rank"
grep -q "restarting all ranks" "$folder/killed.log" || fail "the run did not notice that a rank was lost"
same_weights "$folder/calm" "$folder/killed" $steps
grep -m 1 "was killed by signal 9" "$folder/killed.log"
echo "passed: a lost rank of $ranks changes nothing"
