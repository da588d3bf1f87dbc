#!/bin/sh
# Prints the Python that the environment is made with, and on stderr why, when it is not the first on PATH.
#   sh which-python.sh           the first python3 on PATH that suits, or a later one that is at least 1.2 times as fast
#   sh which-python.sh PYTHON    this one, if it suits
# The speed is measured, since not every build tells how it was made: without profile-guided optimisation, which pyenv
# leaves out, Python takes 1.4 to 1.8 times as long. A shell script, as the first python3 may be too old or broken.
set -eu

# Says why a Python does not suit, or which one it is: the same for every path to it.
suits='
import sys
version = sys.version.split()[0]
try:
    import ensurepip, venv
except ImportError:
    venv = None
if sys.version_info < (3, 11):
    print("is Python " + version + " (3.11 or newer is needed)")
elif sys.implementation.name != "cpython":
    print("is " + sys.implementation.name + " (CPython is needed)")
elif not venv:
    print("lacks the venv module (on Debian and Ubuntu: apt-get install python3-venv)")
else:
    print(version + " " + sys.base_prefix)
'

# Small objects, as messages are made of them: the best of ten rounds in microseconds, on the same core for all Pythons.
loop='
import os, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
class Message:
    def __init__(self, number):
        self.number, self.parts = number, []
    def add(self, part):
        self.parts.append(part)
def seconds():
    begin, known = time.process_time(), {}
    for number in range(2000):
        message = Message(number)
        message.add({"name": "m%d" % number, "rows": (number, number + 1)})
        message.add(bytes(memoryview(b"values")[2:]))
        known[number % 64] = message
    return time.process_time() - begin
print(round(1e6 * min(seconds() for _ in range(10))))
'

# How many times as fast the second Python is as the first, in tenths. They take turns, as a machine has slow moments.
tenths() {
  first_us=1000000000 second_us=1000000000
  for _ in 1 2 3 4 5 6 7 8; do
    us=$("$1" -c "$loop") && [ "$us" -lt "$first_us" ] && first_us=$us
    us=$("$2" -c "$loop") && [ "$us" -lt "$second_us" ] && second_us=$us
  done
  echo $((10 * first_us / second_us))
}

wanted=${1:-python3}
if [ $# -eq 0 ]; then
  set -f
  IFS=:
  for folder in $PATH; do set -- "$@" "${folder:-.}/python3"; done
  unset IFS
fi

first='' taken='' best=11 seen='' refused='' behind=''
for python; do
  command -v "$python" >/dev/null || continue
  is=$("$python" -c "$suits" 2>/dev/null) || is='does not run'
  case $seen in *"<$is>"*) continue ;; esac
  seen="$seen<$is>" this="$python (${is%% *})"
  if [ "${is#[0-9]}" = "$is" ]; then
    refused="$refused${refused:+, }$python $is"
  elif [ -z "$first" ]; then
    first=$this taken=$this behind=$refused
  else
    faster=$(tenths "${first% (*}" "$python")
    [ "$faster" -le "$best" ] || taken=$this best=$faster
  fi
done

if [ -z "$taken" ]; then
  refused="$refused${refused:+; make PYTHON=... takes another}"
  echo "error: ${refused:-no $wanted found; install Python 3.11 or newer}" >&2
  exit 1
elif [ "$taken" != "$first" ]; then
  echo "== environment: $taken runs Python ${best%?}.${best#"${best%?}"} times as fast as $first," \
    'the first on PATH that suits; make PYTHON=... takes another' >&2
elif [ -n "$behind" ]; then
  echo "== environment: $taken, as $behind" >&2
fi
echo "${taken% (*}"
