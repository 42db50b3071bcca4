#!/bin/bash
# The batch script of docs/cluster.md under a real Slurm, a controller and two nodes of our own on this machine, with a tiny model. First the job is preempted
# by one of higher priority, which makes it write a checkpoint and go back to the queue; it is started again and resumes, and its last checkpoint is the
# undisturbed run's, to the bit. Then, with --no-kill and least=1, one of its nodes dies: the other trains on to the end. Needs root and the package slurm-wlm.
# About two minutes. Usage: slurm.sh [SMELT]
set -u
smelt=${1:-build/smelt}
. "$(dirname "$0")/common.sh"
for program in slurmctld slurmd sbatch srun scontrol; do command -v $program >/dev/null || skip "there is no $program (package slurm-wlm)"; done
[ "$(id -u)" = 0 ] || skip "slurmd starts jobs only as root"

host=$(hostname -s)
mkdir "$folder/state"
cat >"$folder/slurm.conf" <<END
ClusterName=smelt
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmctldPort=26817
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool.%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.%n.pid
SlurmdTimeout=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=bf_interval=2,sched_interval=2
GresTypes=gpu
NodeName=node0 NodeHostname=$host NodeAddr=127.0.0.1 Port=26820 CPUs=$(nproc --all) Gres=gpu:1 State=UNKNOWN
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=26821 CPUs=$(nproc --all) Gres=gpu:1 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF
END
touch "$folder/gpu" # it is counted, but is no device: ranks train on the CPU
echo "Name=gpu File=$folder/gpu" >"$folder/gres.conf"
export SLURM_CONF=$folder/slurm.conf
slurmctld -D >"$folder/slurmctld.log" 2>&1 & controller=$!
slurmd -D -N node0 >"$folder/node0.log" 2>&1 & daemons=$!
slurmd -D -N node1 >"$folder/node1.log" 2>&1 & daemons="$daemons $!"
at_exit 'scancel -f --user=root 2>/dev/null; sleep 1; kill_tasks SLURM_JOB_ID=; kill $daemons $controller 2>/dev/null; sleep 1'
# kill_tasks WORD: the tasks of this Slurm whose environment has it, with the daemons that run them.
kill_tasks() {
    for environment in $(grep -lz "SLURM_CONF=$folder/slurm.conf" /proc/[0-9]*/environ 2>/dev/null); do
        process=${environment#/proc/}
        process=${process%/environ}
        grep -qz "$1" "$environment" || continue
        parent=$(sed -n 's/^PPid:\t//p' "/proc/$process/status")
        grep -q '^slurmstepd' "/proc/$parent/cmdline" && kill -9 "$parent"
        kill -9 "$process"
    done 2>/dev/null
}
idle() { [ "$(sinfo -h -p low -t idle -o %D)" = 2 ]; }
await 30 "Slurm's start" idle
say "Slurm $(sinfo -V | cut -d' ' -f2) has two nodes that are idle"

# The documented script as it is printed; what this machine cannot give is said by options of sbatch. The nodes' names are no hosts, so they meet on the
# loopback. submit RUN STEPS OPTION... runs it with this program and the tiny model, and prints the number of the job.
sed -n '/^#!\/bin\/bash/,/^exit/p' "$(dirname "$0")/../../docs/cluster.md" >"$folder/train.sh"
grep -q '^srun' "$folder/train.sh" || fail "docs/cluster.md has no batch script"
mkdir "$folder/bin"
ln -s "$smelt" "$folder/bin/smelt"
submit() {
    run=$folder/$1 steps=$2
    shift 2
    # shellcheck disable=SC2086
    PATH=$folder/bin:$PATH INTERFACE=lo CONTAINER="env CONTAINED=yes" sbatch --parsable --partition=low --gpus-per-node=1 --cpus-per-task=1 \
        --output="$run.log" "$@" "$folder/train.sh" $settings run="$run" steps="$steps" || fail "sbatch"
}
state() { squeue -h -a -j "$1" -o %T 2>/dev/null | grep -q "$2"; }
gone() { ! state "$1" .; }
completed() { scontrol show job "$1" | grep -q 'JobState=COMPLETED'; }
restarted() { [ "$(scontrol show job "$1" | sed -n 's/.*Restarts=\([0-9]*\).*/\1/p')" -ge 1 ]; }

steps=3000
"$smelt" launch -n 2 -- train $settings run="$folder/calm" steps=$steps >"$folder/calm.log" 2>&1 || fail "the undisturbed run"
say "undisturbed run: $steps steps"
job=$(submit run $steps)
await 60 "the job's start" reached "$folder/run" 300
other=$(sbatch --parsable --partition=high --nodes=2 --exclusive --output="$folder/other.log" --wrap 'sleep 5') || fail "sbatch of the other job"
say "job $job trains on two nodes; job $other of higher priority submitted"
await 60 "the other job's start" state "$other" RUNNING
grep -q "a checkpoint was written" "$folder/run.log" || fail "the job was preempted without a checkpoint"
say "preempted: $(grep -h 'a checkpoint was written' "$folder/run.log" | tail -n 1)"
await 60 "the other job's end" gone "$other"
await 60 "the job's second start" grep -q "continuing" "$folder/run.log"
restarted "$job" || fail "the job was not requeued"
say "requeued: $(grep -h 'continuing' "$folder/run.log" | tail -n 1)"
await 180 "the job's end" gone "$job"
completed "$job" || fail "the job ended otherwise: $(scontrol show job "$job" | grep -E 'JobState|ExitCode')"
same_weights "$folder/calm" "$folder/run" $steps

job=$(LAUNCH="least=1 away=5" submit lost 8000 --no-kill --no-requeue)
await 60 "the job's start" reached "$folder/lost" 300
# The node dies: its daemon, and all that it started.
kill -9 ${daemons#* }
wait ${daemons#* } 2>/dev/null
kill_tasks SLURMD_NODENAME=node1
say "node1 killed"
await 60 "going on without node1" grep -q "continuing with 1 of 2 nodes, 1 ranks: node 1 did not connect in 5 s" "$folder/lost.log"
say "$(grep -h 'continuing with' "$folder/lost.log" | tail -n 1 | cut -c1-150)"
await 60 "Slurm's notice of it" grep -q "Node failure on node1" "$folder/lost.log"
say "Slurm has noticed after $(grep -c '"kind": *"step"' "$folder/lost/metrics.jsonl") steps, and lets the job go on"
await 180 "the end of the training" reached "$folder/lost" 8000
await 60 "the job's end" gone "$job"
completed "$job" || fail "the job ended otherwise: $(scontrol show job "$job" | grep -E 'JobState|ExitCode')"
say "job $job: $(scontrol show job "$job" | grep -o -E 'JobState=[A-Z_]*|ExitCode=[0-9:]*' | tr '\n' ' ')"
say "passed"
