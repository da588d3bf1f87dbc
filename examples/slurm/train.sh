#!/bin/bash
# A training on a Slurm cluster: `sbatch examples/slurm/train.sh DATASET RUN [OPTIONS of glovewire server...]`
# The first two tasks are shards, the others workers, each with a core. DATASET and RUN are on a file system that every node has,
# and so is the environment in which `glovewire` is installed.
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
port=${PORT:-5555} # of shard 0; every shard takes two
keys=$run.keys

# The nodes' names, one for each task; the first tasks are on the first of them.
mapfile -t nodes < <(srun --ntasks="$SLURM_NTASKS" hostname | sort)
addresses=()
for ((shard = 0; shard < shards; shard++)); do
  addresses+=("tcp://${nodes[shard]}:$((port + 2 * shard))")
done
[ -e "$keys/server.key" ] || glovewire keys "$keys"

for ((shard = 0; shard < shards; shard++)); do
  srun --exact --ntasks=1 --nodes=1 --nodelist="${nodes[shard]}" \
    glovewire server "$dataset" --out "$run" --shard "$shard/$shards" --keys "$keys" --recover --checkpoint-every 1 \
    --workers "$workers" \
    --bind "tcp://0.0.0.0:$((port + 2 * shard))" --publish "tcp://0.0.0.0:$((port + 2 * shard + 1))" "$@" &
done

servers=()
for address in "${addresses[@]}"; do servers+=(--server "$address"); done
srun --exact --ntasks="$workers" --kill-on-bad-exit=0 \
  glovewire worker "$dataset" "${servers[@]}" --keys "$keys" --timeout 300
wait
