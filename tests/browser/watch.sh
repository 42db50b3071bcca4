#!/bin/sh
# Drives `smelt watch` and the report page in headless Chromium: the page follows a run that is being written, hostile texts run no script, and no page
# is wider than its window. Needs chromium-headless-shell (make test-browser installs it). Usage: watch.sh SMELT
set -eu
smelt=$(realpath "$1")
folder=$(mktemp -d)
watcher=""
trap '[ -z "$watcher" ] || kill $watcher 2>/dev/null || true; rm -rf "$folder"' EXIT
cd "$folder"
passed=0 failed=0

browser() { chromium-headless-shell --no-sandbox --disable-gpu --allow-file-access-from-files --user-data-dir="$folder/profile" "$@" 2>/dev/null; }

# check NAME FILE TEXT...: the file has each text.   lacks NAME FILE TEXT: it does not.
result() { if [ "$2" = 0 ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $1"; fi; }
check() { grep -qF -- "$3" "$2" && result "$1" 0 || result "$1" 1; }
lacks() { grep -qF -- "$3" "$2" && result "$1" 1 || result "$1" 0; }

steps() { # FROM TO
    for step in $(seq "$1" "$2"); do
        echo "{\"kind\": \"step\", \"step\": $step, \"loss\": 2.$((9000 - step)), \"lr\": 0.001, \"grad_norm\": 1.5, \"tokens_seen\": $((step * 100)), \"tokens_per_second\": 1000}"
    done
}

name="<img src=x onerror=document.title='harmed'><script>document.title='harmed'<\\script>"
mkdir "$name" plain
{
    echo "{\"kind\": \"start\", \"step\": 0, \"machine\": \"<img src=x onerror=document.title='harmed'>\", \"parameters\": 12345}"
    steps 1 60
} | tee "$name/metrics.jsonl" >plain/metrics.jsonl
printf 'steps: 100\ndata:\n  train: "<svg onload=document.title=1>%s"\n' "$(printf 'long-%.0s' $(seq 60))" >"$name/config.yaml"
printf 'steps: 100\noptimizer:\n  lr: 0.5\n' >plain/config.yaml

"$smelt" watch "$name" port=0 >address &
watcher=$!
until grep -q http address; do sleep 0.1; done
url=$(sed -n 's/.*\(http[^ ]*\).*/\1/p' address)

# Records come while the browser is open: only the script can bring them onto its page. Its clock runs ahead of the real one while it waits: the budget
# is some 6,000 requests, which take many seconds.
(sleep 1; steps 61 70 >>"$name/metrics.jsonl") &
browser --virtual-time-budget=6000000 --dump-dom "$url" >dom
check "the script runs and says so" dom 'class="live" role="status">connected</p>'
check "the page follows the run" dom '2.8930'
lacks "the figures of before are gone" dom '>2.8940</dd>'
lacks "no element comes from the run" dom '<img'
lacks "no script of the run ran" dom '<title>harmed'
lacks "no drawing of the run is one" dom '<svg onload'
kill -INT $watcher
wait $watcher && result "it ends cleanly" 0 || result "it ends cleanly" 1
watcher=""

# The harness frames a page and writes down whether it is wider than its frame.
"$smelt" report "$name" out=one.html >/dev/null
"$smelt" report "$name" plain out=two.html >/dev/null
for page in one two; do
    for width in 1200 390 320; do
        echo "<iframe id=f src=$page.html style='width:${width}px;height:900px;border:0'></iframe><script>onload = () => { const e =
            f.contentDocument.documentElement; document.body.append('width ' + (e.scrollWidth <= e.clientWidth ? 'fits' : 'is ' + e.scrollWidth)) }</script>" >frame.html
        browser --timeout=5000 --dump-dom "file://$folder/frame.html" >dom
        check "$page.html is no wider than $width" dom 'width fits'
    done
done

echo "browser: $passed passed, $failed failed"
[ $failed = 0 ]
