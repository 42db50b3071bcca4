#!/bin/bash
# Two nodes as network namespaces joined by a veth pair, each with its own supervisor, training a tiny model: a break of 20 s is survived; after a cut for
# good the run ends, or, with least=1, goes on on node 0, and takes node 1 back once the link is mended. Needs root and iproute2. About 4 minutes, most of
# them waiting for what the kernel must notice. Usage: network.sh [SMELT]
set -u
smelt=${1:-build/smelt}
. "$(dirname "$0")/common.sh"
command -v ip >/dev/null || skip "there is no ip (package iproute2)"
a=smelt-a-$$ b=smelt-b-$$
ip netns add "$a" 2>/dev/null || skip "this user may not make network namespaces"
at_exit "ip netns del $a; ip netns del $b"
ip netns add "$b" && ip link add smelt-a netns "$a" type veth peer name smelt-b netns "$b" || skip "there are no veth devices"
ip -n "$a" addr add 10.9.0.1/24 dev smelt-a && ip -n "$b" addr add 10.9.0.2/24 dev smelt-b
for name in "$a lo" "$b lo" "$a smelt-a" "$b smelt-b"; do ip -n ${name% *} link set "${name#* }" up; done
export NNODES=2 MASTER_ADDR=10.9.0.1 MASTER_PORT=29511
cut_link() { ip -n "$b" link set smelt-b down; say "cut"; }
mend_link() { ip -n "$b" link set smelt-b up; say "mended"; }
# launch NAMESPACE NODE RUN STEPS SETTING...: a supervisor.
launch() {
    namespace=$1 node=$2 run=$3 steps=$4
    shift 4
    NODE_RANK=$node exec ip netns exec "$namespace" "$smelt" launch -n 1 "$@" -- train $settings run="$folder/$run" steps="$steps"
}
# start RUN STEPS SETTING...: both, until they train.
start() {
    launch "$a" 0 "$@" >"$folder/$1.a.log" 2>&1 & first=$!
    launch "$b" 1 "$@" >"$folder/$1.b.log" 2>&1 & second=$!
    await 60 "the start of $1" reached "$folder/$1" 100
}

calm_steps=2500
env -u NNODES "$smelt" launch -n 2 -- train $settings run="$folder/calm" steps=$calm_steps >"$folder/calm.log" 2>&1 || fail "the undisturbed run"
say "undisturbed run: $calm_steps steps"

start break $calm_steps
cut_link
sleep 20
before=$(grep -c '"kind": *"step"' "$folder/break/metrics.jsonl")
mend_link
await 30 "training after the break" reached "$folder/break" $((before + 1))
say "training goes on after step $before"
ended $first 0 "node 0"; ended $second 0 "node 1"
grep -q "restarting all ranks" "$folder"/break.?.log && fail "the break was not survived: ranks started again"
same_weights "$folder/calm" "$folder/break" $calm_steps

start end 1000000 away=10 restarts=1
cut_link
ended $first 6 "node 0"; say "node 0 ended with code 6: $(grep -h 'are needed' "$folder/end.a.log" | tail -n 1 | cut -c1-150)"
ended $second 6 "node 1"; say "node 1 ended with code 6: $(grep -h 'was unreachable' "$folder/end.b.log" | tail -n 1 | cut -c1-150)"
mend_link

start alone 1000000 least=1 away=10
cut_link
await 120 "going on without node 1" grep -q "continuing with 1 of 2 nodes" "$folder/alone.a.log"
say "$(grep -h 'continuing with' "$folder/alone.a.log" | cut -c1-150)"
ended $second 6 "node 1"
mend_link
launch "$b" 1 alone 1000000 least=1 away=10 >"$folder/alone.c.log" 2>&1 & second=$! # as the cluster's manager starts a node's service again
await 60 "node 1's self-test" grep -q "node 1 passed its self-test" "$folder/alone.c.log"
sleep 1
kill -9 "$(cut -d' ' -f1 "/proc/$first/task/$first/children")"
await 60 "node 1's return" grep -q "all 2 nodes are in the run again" "$folder/alone.a.log"
say "all 2 nodes take part again"
kill -TERM $first $second
ended $first 8 "node 0"; ended $second 8 "node 1"
say "passed"
