# What the cluster tests share: a folder of their own, a small text, a tiny model that trains the same bits each time, and how they end. Sourced, after
# `smelt` was set. A test that cannot run here says so and counts as passed.
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 SMELT_SECRET="the secret of the cluster tests"
smelt=$(realpath "$smelt") || { echo "there is no program: build it, or give its path" >&2; exit 2; }
folder=$(mktemp -d "${TMPDIR:-/tmp}/smelt-cluster-XXXXXX")
cleanups='processes=$(jobs -p); disown -a; kill -9 $processes 2>/dev/null; rm -rf "$folder"'
trap 'eval "$cleanups"' EXIT
trap 'exit 1' INT TERM
at_exit() { cleanups="$1; $cleanups"; }
skip() { echo "skipped: $1"; exit 0; }
fail() {
    echo "FAILED: $1"
    for file in "$folder"/*.log; do echo "--- $file"; tail -n 25 "$file"; done
    exit 1
}
say() { printf '%4d s  %s\n' "$SECONDS" "$1"; }

cat "$(dirname "$0")"/../../docs/*.md >"$folder/text"
settings="data.train=$folder/text model.family=llama model.width=64 model.layers=2 model.heads=2 model.kv_heads=1 model.ffn=128 data.length=64
    batch.sequences=2 batch.tokens=768 optimizer.lr=1e-3 threads=1 device=cpu tensorboard=false layout.zero=1 checkpoint.every=50"

# await SECONDS MEANING COMMAND...: until the command succeeds.
await() {
    seconds=$1 meaning=$2
    shift 2
    tries=$((seconds * 10))
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || fail "$meaning: not in $seconds s"
        sleep 0.1
    done
}
# reached RUN STEP: whether the run's record has come so far.
reached() { [ -e "$1/metrics.jsonl" ] && [ "$(grep -c '"kind": *"step"' "$1/metrics.jsonl")" -ge "$2" ]; }
# ended PROCESS CODE NAME: waits for its end, with this exit code.
ended() {
    code=0
    wait "$1" || code=$?
    [ "$code" -eq "$2" ] || fail "$3 ended with code $code in place of $2"
}
# same_weights RUN RUN STEP: all tensors of a checkpoint, to the bit.
same_weights() {
    count=0
    for file in "$1/checkpoints/step-$(printf %08d "$3")"/*.safetensors; do
        cmp -s "$file" "$2/checkpoints/step-$(printf %08d "$3")/$(basename "$file")" || fail "$(basename "$file") of step $3 differs from the undisturbed run's"
        count=$((count + 1))
    done
    [ "$count" -gt 0 ] || fail "there is no checkpoint of step $3"
    say "the $count files of step $3 are those of the undisturbed run, to the bit"
}
