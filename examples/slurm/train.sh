#!/bin/bash
# Trains on a Slurm cluster: `sbatch examples/slurm/train.sh DATASET RUN [OPTIONS of glovewire server...]`
# The first two tasks are shards, the others workers, each with a core. DATASET, RUN and the environment in which `glovewire` is
# installed must be on a file system that every node shares. Submitted again with the same RUN, the job resumes.
#SBATCH --job-name=glovewire
#SBATCH --ntasks=8
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail

dataset=$1 run=$2
shift 2
shards=2
workers=$((SLURM_NTASKS - shards))
port=${PORT:-5555} # of shard 0; every shard uses two ports
keys=$run.keys

# The node name of each task, sorted; the first tasks run on the first nodes.
mapfile -t nodes < <(srun printenv SLURMD_NODENAME | sort)
servers=()
for ((shard = 0; shard < shards; shard++)); do
  servers+=(--server "tcp://${nodes[shard]}:$((port + 2 * shard))")
done
[ -e "$keys/server.key" ] || glovewire keys "$keys"

# step TASK COMMAND...: run on the task's node, and again, at most twenty times, if it was killed (by the OOM killer, say).
step() {
  local node=${nodes[$1]} try code
  shift
  for ((try = 0; try <= 20; try++)); do
    code=0
    srun --exact --ntasks=1 --nodes=1 --nodelist="$node" "$@" || code=$?
    ((code > 128)) || break
  done
  return "$code"
}

for ((shard = 0; shard < shards; shard++)); do
  step "$shard" glovewire server "$dataset" --out "$run" --shard "$shard/$shards" --keys "$keys" --recover \
    --checkpoint-every 1 --workers "$workers" \
    --bind "tcp://0.0.0.0:$((port + 2 * shard))" --publish "tcp://0.0.0.0:$((port + 2 * shard + 1))" "$@" &
done
for ((task = shards; task < SLURM_NTASKS; task++)); do # the name identifies a restarted worker; the key makes it worker.task-N
  step "$task" glovewire worker "$dataset" "${servers[@]}" --keys "$keys" --timeout 300 --name "task-$task" &
done

# A step that fails by itself ends the job.
for ((task = 0; task < SLURM_NTASKS; task++)); do wait -n; done
