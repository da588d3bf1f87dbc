#!/bin/bash
# Trains on a Slurm cluster: `sbatch examples/slurm/train.sh DATASET RUN [OPTIONS of glovewire server...]`
# The first two tasks are shards, the others workers, each with a core. No file system need be shared: DATASET and RUN are used on the
# first node only, where shard 0 runs; the others keep what they need in $SLURM_TMPDIR, $TMPDIR or /tmp of their node. Each node needs
# `glovewire` on its PATH. If you submit the job again with the same RUN, it resumes if the new first node has RUN. See docs/clusters.md.
#SBATCH --job-name=glovewire
#SBATCH --ntasks=8
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=2G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail

if (($# < 2)); then
  echo "usage: sbatch examples/slurm/train.sh DATASET RUN [OPTIONS of glovewire server...]" >&2
  exit 2
fi
dataset=$(realpath -m "$1") run=$(realpath -m "$2")
shift 2
shards=2
workers=$((SLURM_NTASKS - shards))
port=${PORT:-$((10000 + SLURM_JOB_ID % 3000 * 6))} # of shard 0; every shard uses three ports, and a node may have other jobs
keys=$run.keys
glovewire config show server "$dataset" --out "$run" "$@" > /dev/null # a wrong option ends the job here, with one error

# The node of each task: every node once, beginning with this one, then every node that has a second task, and so on.
all=$(srun printenv SLURMD_NODENAME | sort)
mapfile -t nodes < <({ grep -Fx "$SLURMD_NODENAME" <<< "$all"; grep -Fxv "$SLURMD_NODENAME" <<< "$all"; } |
  awk '{ print seen[$0]++, $0 }' | sort -s -n -k 1,1 | cut -d " " -f 2)
servers=() peers=()
for ((shard = 0; shard < shards; shard++)); do
  servers+=(--server "tcp://${nodes[shard]}:$((port + 3 * shard))")
  peers+=(--peer "tcp://${nodes[shard]}:$((port + 3 * shard + 2))")
done
[ -e "$keys/server.key" ] || glovewire keys "$keys"

# The script that a node runs for a task: glovewire in a folder of the job on the node's disk, with the keys from stdin. A task that is
# terminated or fails removes its folder, and the node's last task that of the job. Status 1 becomes 3: srun's 1 is "out of memory".
# shellcheck disable=SC2016
on_node='
  job=${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/glovewire-$SLURM_JOB_ID
  mkdir -m 700 "$job" 2> /dev/null || [ -O "$job" ] || { echo "$job belongs to another user" >&2; exit 1; }
  mkdir -p -m 700 "$job/$0/keys" && cd "$job/$0" && tar -xC keys
  code=0 over=
  trap over=1 TERM # runs once glovewire, which gets the signal too, has stopped
  glovewire "$@" || code=$?
  case $over$code in 0 | 134 | 137 | 139) ;; *) # those: complete, or killed and to be run again
    rm -rf "$job/$0"
    ls -d "$job"/task-* > /dev/null 2>&1 || rm -rf "$job" ;;
  esac
  exit $((code == 1 ? 3 : code))'

# step TASK COMMAND...: run on the task's node, and again, at most twenty times, if it was killed (by the OOM killer, say).
step() {
  local task=$1 try code files=(worker.key server.pub)
  ((task >= shards)) || files=(server.key server.pub allowed.toml)
  shift
  for ((try = 0; try <= 20; try++)); do
    code=0
    tar -cC "$keys" "${files[@]}" |
      srun --exact --ntasks=1 --nodes=1 --nodelist="${nodes[task]}" sh -euc "$on_node" "task-$task" "$@" || code=$?
    ((code == 1 || code > 128)) || break
  done
  return "$code"
}

for ((shard = 0; shard < shards; shard++)); do
  here=(--out run) # in the folder of the task; shard 0 gives the others the dataset and keeps copies of their checkpoints
  ((shard)) || here=("$dataset" --out "$run")
  step "$shard" server "${here[@]}" --cache ../cache --shard "$shard/$shards" "${peers[@]}" --keys keys --recover \
    --checkpoint-every 1 --workers "$workers" \
    --bind "tcp://0.0.0.0:$((port + 3 * shard))" --publish "tcp://0.0.0.0:$((port + 3 * shard + 1))" "$@" &
done
for ((task = shards; task < SLURM_NTASKS; task++)); do # the name identifies a restarted worker; the key makes it worker.task-N
  step "$task" worker --cache ../cache "${servers[@]}" --keys keys --timeout 300 --name "task-$task" &
done

# A step that fails by itself ends the job; no step is run again then.
# shellcheck disable=SC2046
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT
for ((task = 0; task < SLURM_NTASKS; task++)); do wait -n; done

# shellcheck disable=SC2016
srun sh -c 'rm -rf "${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/glovewire-$SLURM_JOB_ID"'
