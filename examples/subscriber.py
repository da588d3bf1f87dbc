"""Print the loss of a training from its beginning. Start it at any time.

python examples/subscriber.py tcp://127.0.0.1:5556
"""

import sys

import glovewire

for sample in glovewire.subscribe(sys.argv[1:] or "tcp://127.0.0.1:5556", topics=["loss"]):
    if sample["worker"] == "all":
        print(f"{sample['t']:8.1f} s  {sample['entries']:>12,} entries  loss {sample['mean_loss']:.4f}")
