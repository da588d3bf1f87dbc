"""Print the loss of a training from its beginning. Start it at any time.

python examples/subscriber.py tcp://127.0.0.1:5556
"""

import argparse
import sys

import glovewire

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("addresses", nargs="*", default=["tcp://127.0.0.1:5556"], metavar="ADDRESS")
try:
    for sample in glovewire.subscribe(parser.parse_args().addresses, topics=["loss"]):
        if sample["worker"] == "all":
            print(f"{sample['t']:8.1f} s  {sample['entries']:>12,} entries  loss {sample['mean_loss']:.4f}")
except glovewire.errors.GlovewireError as error:
    sys.exit(f"error: {error}")
