#!/bin/sh
# A real Prometheus with the configuration and the alert rules of packaging/monitoring scrapes a training and a `smelt watch` of its folder for some
# seconds. Then kill -9 ends the training, and the alert has to fire. Usage: prometheus.sh SMELT [SECONDS], from the root of the repository
set -eu
smelt=$(realpath "$1") seconds=${2:-30} every=2 # between scrapes
monitoring=$(realpath packaging/monitoring)
folder=$(mktemp -d)
training="" watch="" prometheus=""
trap 'kill $training $watch $prometheus 2>/dev/null || true; wait; rm -rf "$folder"' EXIT
fail() { echo "FAILED: $1" >&2; tail -n 3 "$folder"/*.log >&2; exit 1; }
# await WHAT COMMAND...: until the command succeeds, which is fast unless something hangs.
await() {
    what=$1
    shift
    for _ in $(seq 600); do if "$@"; then return; fi; sleep 0.2; done
    fail "$what did not come within 120 s"
}
port() { python3 -c "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); print(s.getsockname()[1])"; }
own=$(port) seen=$(port) api=$(port)
cat docs/*.md >"$folder/text"
cp "$monitoring/smelt-alerts.yml" "$folder"
sed "s/scrape_interval: 15s, evaluation_interval: 15s/scrape_interval: ${every}s, evaluation_interval: ${every}s/
    s/127.0.0.1:9400/127.0.0.1:$own/; s/127.0.0.1:6160/127.0.0.1:$seen/" "$monitoring/prometheus.yml" >"$folder/prometheus.yml"
cd "$folder"
OMP_WAIT_POLICY=passive nice "$smelt" train run=runs/watched data.train=text device=cpu threads=1 steps=100000000 model.width=32 model.layers=2 data.length=64 \
    batch.sequences=4 batch.tokens=256 tensorboard=false eval.every=0 metrics.listen=127.0.0.1:"$own" >training.log 2>&1 &
training=$!
await "the first step" test -s runs/watched/metrics.jsonl
"$smelt" watch runs port="$seen" >watch.log 2>&1 &
watch=$!
prometheus --config.file=prometheus.yml --storage.tsdb.path=data --web.listen-address=127.0.0.1:"$api" >prometheus.log 2>&1 &
prometheus=$!

# value EXPRESSION: its first value, or nothing.
value() {
    python3 - "$api" "$1" <<'END_OF_PYTHON'
import json, sys, urllib.error, urllib.parse, urllib.request
try:
    answer = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/api/v1/query?" + urllib.parse.urlencode({"query": sys.argv[2]}))
    result = json.load(answer)["data"]["result"]
    print(result[0]["value"][1] if result else "")
except (OSError, urllib.error.URLError):
    print("")
END_OF_PYTHON
}
is() { [ "$(value "$1")" = "$2" ]; }
await "the state of the run from both addresses" is 'count(smelt_run_state{run="watched",state="training"} == 1)' 2
sleep "$seconds"
is 'count(ALERTS) or vector(0)' 0 || fail "an alert of a healthy run: $(value ALERTS)"
is "min(max_over_time(smelt_run_step[10s])) > bool 0" 1 || fail "no steps"
names=$(value 'count(count by (__name__)({__name__=~"smelt_.*"}))') scrapes=$(value "sum(count_over_time(up[1h]))") lost=$(value "sum(count_over_time(up[1h]) - sum_over_time(up[1h]))")
kill -9 "$training"
killed=$(date +%s)
await "the alert" is 'count(ALERTS{alertname="SmeltRunFailed",run="watched",alertstate="firing"})' 1
echo "prometheus: passed: $scrapes scrapes of two addresses in $seconds s, $lost of them failed, $names names; SmeltRunFailed fired $(($(date +%s) - killed)) s after kill -9"
